"""One algorithm choice of cuBLASLt: nine integers, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from kclab.core.errors import BadUsage


@dataclass(frozen=True, slots=True, order=True)
class AlgorithmConfig:
    """One algorithm choice. Two configs may launch the same kernel; see `Launch`.

    The numbers mean something only beside the library version that they came from.
    """

    algorithm_id: int
    """`CUBLASLT_ALGO_CONFIG_ID`."""
    tile_id: int = 0
    """Block tile, `CUBLASLT_MATMUL_TILE_*`."""
    stages_id: int = 0
    """Depth and count of the shared-memory pipeline, `CUBLASLT_MATMUL_STAGES_*`."""
    split_k: int = 1
    """K slices summed afterwards; 1 means none. Changes the order of additions."""
    reduction_scheme: int = 0
    """How slices are summed: 0 not at all, 1 in place, 2 in fp32, 4 in the output's bf16."""
    cta_swizzle: int = 0
    """Order in which tiles are walked."""
    custom_option: int = 0
    """The algorithm's own switch."""
    inner_shape: int = 0
    """`CUBLASLT_MATMUL_INNER_SHAPE_*`."""
    cluster_shape: int = 0
    """Thread block clusters, `CUBLASLT_CLUSTER_SHAPE_*`."""

    @property
    def key(self) -> tuple[int, ...]:
        """The nine numbers in this class's order."""
        numbers: tuple[int, ...] = _numbers(self)
        return numbers

    @property
    def text(self) -> str:
        """`66:600:36:1:0:0:0:0:2`: what commands print and take."""
        return ":".join(str(value) for value in self.key)

    def to_json(self) -> dict[str, int]:
        """Field names and values."""
        return dict(zip(NAMES, self.key, strict=True))


NAMES = tuple(field.name for field in fields(AlgorithmConfig))
"""The nine field names, in order."""

_numbers = attrgetter(*NAMES)

_REQUIRED = "algorithm_id"


def parse_config(text: str) -> AlgorithmConfig:
    """A config from its text form or from a JSON object. Raises BadUsage."""
    if text.lstrip().startswith("{"):
        try:
            return config_from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise BadUsage(f"algorithm config {text!r}: not valid JSON ({error}).") from error
    parts = text.split(":")
    if len(parts) != len(NAMES) or not all(part.strip().isdigit() for part in parts):
        raise BadUsage(
            f"algorithm config {text!r}: nine whole numbers joined by ':' are expected "
            f"({':'.join(NAMES)}), or a JSON object."
        )
    return AlgorithmConfig(*(int(part) for part in parts))


def config_from_json(value: Mapping[str, Any]) -> AlgorithmConfig:
    """A config from an object with this class's field names; other keys are ignored.

    What is missing besides the algorithm id takes its default. Raises BadUsage.
    """
    if _REQUIRED not in value:
        raise BadUsage(f"algorithm config {dict(value)!r}: no {_REQUIRED}.")
    known = {name: value[name] for name in NAMES if value.get(name) is not None}
    wrong = [name for name, item in known.items() if isinstance(item, bool) or item != int(item)]
    if wrong:
        raise BadUsage(f"algorithm config: {wrong[0]} is {known[wrong[0]]!r}, not a whole number.")
    return AlgorithmConfig(**{name: int(item) for name, item in known.items()})
