"""What a family is: a reference source, and a body for any sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kclab.core.definition import Definition
from kclab.core.digest import text_sha256
from kclab.core.errors import BadUsage

Body = dict[str, Any]

DTYPE_TAGS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""How a definition's name spells its dtype."""


@dataclass(frozen=True, slots=True)
class Family:
    """A function that writes a definition for any sizes, and the references that they share."""

    name: str
    summary: str
    sizes: tuple[str, ...]
    """The parameters of `make` that have no default."""
    options: Mapping[str, Any]
    """The other parameters of `make`, with their defaults."""
    write: Callable[..., Body] = field(repr=False)
    """Writes the JSON body from sizes and options."""
    names: re.Pattern[str] = field(repr=False)
    """Matches the name of every definition of this family."""
    sources: tuple[str, ...] = field(repr=False)
    """Files in `references/`, without `.py`: one for each set of inputs that an option makes."""
    earlier: tuple[str, ...] = field(default=(), repr=False)
    """sha256 of the references that its definitions carried before these."""

    @property
    def reference_sha256s(self) -> frozenset[str]:
        """Of each reference that its definitions carry, or carried: stores keep old ones.

        Always trusted; see `kclab.core.trust`.
        """
        return frozenset((*map(_reference_sha256, self.sources), *self.earlier))

    def make(self, **parameters: Any) -> Definition:
        """The definition for these sizes; BadUsage names a missing, unknown or odd parameter."""
        self._check(parameters)
        body = self.write(**{**self.options, **parameters})
        return Definition.from_body(body, f"family {self.name}")

    def _check(self, parameters: Mapping[str, Any]) -> None:
        missing = [size for size in self.sizes if size not in parameters]
        if missing:
            raise BadUsage(f"family {self.name} needs the size {', '.join(missing)}.")
        known = (*self.sizes, *self.options)
        unknown = [key for key in parameters if key not in known]
        if unknown:
            raise BadUsage(
                f"family {self.name} has no parameter {unknown[0]!r}; it has {', '.join(known)}."
            )
        for size in self.sizes:
            require_size(size, parameters[size])
        for option, default in self.options.items():
            if isinstance(default, bool) and type(parameters.get(option, default)) is not bool:
                raise BadUsage(f"{option} must be true or false; found {parameters[option]!r}.")


@cache
def read_reference(source: str) -> str:
    """The text of `references/<source>.py`."""
    return (Path(__file__).parent / "references" / f"{source}.py").read_text(encoding="utf-8")


@cache
def _reference_sha256(source: str) -> str:
    return text_sha256(read_reference(source))


def require_size(name: str, value: object) -> None:
    """BadUsage unless `value` is a positive int."""
    if type(value) is not int or value < 1:
        raise BadUsage(f"size {name} must be a whole number of 1 or more; found {value!r}.")


def dtype_of(tag: str) -> str:
    """torch's name for `bf16`, `fp16` or `fp32`; torch's own names pass as they are."""
    if tag in DTYPE_TAGS:
        return DTYPE_TAGS[tag]
    if tag in DTYPE_TAGS.values():
        return tag
    raise BadUsage(f"dtype {tag!r} is none of {', '.join(DTYPE_TAGS)}.")


def tag_of(dtype: str) -> str:
    """`bf16` for `bfloat16`, and so on; tags pass as they are."""
    wanted = dtype_of(dtype)
    return next(tag for tag, name in DTYPE_TAGS.items() if name == wanted)


def const(value: int, description: str) -> Body:
    """A constant axis."""
    return {"type": "const", "value": value, "description": description}


def var(description: str) -> Body:
    """A variable axis."""
    return {"type": "var", "description": description}


def tensor(shape: list[str] | None, dtype: str, description: str) -> Body:
    """An input or output; a None shape is a Python scalar."""
    return {"shape": shape, "dtype": dtype, "description": description}
