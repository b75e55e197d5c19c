"""Names of number formats, as SGLang's quantization modules look them up at import."""

from __future__ import annotations

import re


class ScalarType:
    """A number format: its name, and how many bits it takes."""

    def __init__(self, name: str):
        self.name = name
        bits = re.search(r"\d+", name)
        self.size_bits = int(bits.group()) if bits else 8
        self.id = sum(map(ord, name))

    def __repr__(self) -> str:
        return f"ScalarType({self.name})"


class ScalarTypes:
    """Every format that anybody asks for."""

    def __getattr__(self, name: str) -> ScalarType:
        if name.startswith("__"):
            raise AttributeError(name)
        made = ScalarType(name)
        setattr(self, name, made)
        return made


scalar_types = ScalarTypes()
