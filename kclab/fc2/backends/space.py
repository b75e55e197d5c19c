"""cuBLASLt's explicit configs as rows of nine integers: one knob away, or all of them.

Capabilities list tiles, stages, split-K, reductions, swizzles and custom options. Clusters and
inner shapes are listed nowhere; they are tried. Checking a config costs one to two microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch

from kclab.fc2.config import NAMES, AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.fc2.lt import Capabilities

CLUSTERS = (0, *range(2, 52))
"""`CUBLASLT_CLUSTER_SHAPE_*` of every header from 12.0 to 13.10; 1 is unused."""

SPLITS = (2, 3, 4, 5, 6, 8, 12, 16, 32)
"""Split-K counts that NVIDIA's own search example tries."""

REDUCTIONS = (1, 2, 4)
"""In place, in fp32, in the output's type."""

PORTION_ROWS = 65_536
COLUMN = {name: index for index, name in enumerate(NAMES)}
SHAPE = [COLUMN[name] for name in ("algorithm_id", "tile_id", "stages_id", "cluster_shape")]


@dataclass(frozen=True, slots=True)
class Knobs:
    """The values that each number of an algorithm id may take."""

    algorithm_id: int
    tiles: tuple[int, ...]
    stages: tuple[int, ...]
    splits: tuple[tuple[int, int], ...]
    """(split-K, reduction scheme), (1, 0) first."""
    swizzles: tuple[int, ...]
    customs: tuple[int, ...]

    @classmethod
    def of(cls, said: Capabilities) -> Knobs:
        """From what the library says."""
        reductions = [scheme for scheme in REDUCTIONS if said.reduction_mask & scheme]
        counts = SPLITS if said.split_k else ()
        return cls(
            said.algorithm_id,
            said.tiles,
            said.stages,
            ((1, 0), *((count, scheme) for count in counts for scheme in reductions)),
            (0, 1) if said.swizzle else (0,),
            tuple(range(max(said.custom_max, 0) + 1)),
        )


def neighbour_rows(knobs: Knobs, config: AlgorithmConfig) -> Tensor:
    """int32 [n, 9]: the config with one knob at each other value."""
    options: list[tuple[str, tuple[int, ...]]] = [
        ("tile_id", knobs.tiles),
        ("stages_id", knobs.stages),
        ("cta_swizzle", knobs.swizzles),
        ("custom_option", knobs.customs),
        ("cluster_shape", CLUSTERS),
    ]
    rows: list[list[int]] = []
    for name, values in options:
        rows += [_changed(config, {name: v}) for v in values if v != getattr(config, name)]
    own = (config.split_k, config.reduction_scheme)
    rows += [
        _changed(config, {"split_k": count, "reduction_scheme": scheme})
        for count, scheme in knobs.splits
        if (count, scheme) != own
    ]
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 9)


def _changed(config: AlgorithmConfig, values: dict[str, int]) -> list[int]:
    row = list(config.key)
    for name, value in values.items():
        row[COLUMN[name]] = value
    return row


def plain_rows(knobs: Knobs) -> Iterator[Tensor]:
    """Every tile, stage count and cluster, with no split-K, swizzle or custom option.

    int32 [n, 9] at a time, as all of these.
    """
    yield from _combined(_shapes(knobs), (1, 0), 0, 0)


def other_rows(knobs: Knobs, accepted: Tensor) -> Iterator[Tensor]:
    """The same with every other combination of split-K, swizzle and custom option.

    `accepted` are the plain rows that the library takes; only these are combined further. What it
    refuses plainly it refuses otherwise too, and the full product is a hundred times larger than
    what is valid of it. An id that takes nothing plainly is asked about split-K alone.
    """
    shapes = _shapes(knobs)
    if not len(accepted):
        for split in knobs.splits[1:]:
            yield from _combined(shapes[shapes[:, 3] == 0], split, 0, 0)
        return
    for split, swizzle, custom in product(knobs.splits, knobs.swizzles, knobs.customs):
        if (split, swizzle, custom) != ((1, 0), 0, 0):
            yield from _combined(accepted[:, SHAPE], split, swizzle, custom)


def _shapes(knobs: Knobs) -> Tensor:
    """int32 [n, 4]: algorithm, tile, stages, cluster."""
    values = ((knobs.algorithm_id,), knobs.tiles, knobs.stages, CLUSTERS)
    return torch.cartesian_prod(*(torch.tensor(v, dtype=torch.int32) for v in values))


def _combined(
    shapes: Tensor, split: tuple[int, int], swizzle: int, custom: int
) -> Iterator[Tensor]:
    rows = torch.zeros(len(shapes), len(NAMES), dtype=torch.int32)
    rows[:, SHAPE] = shapes
    fixed = {"split_k": split[0], "reduction_scheme": split[1]}
    for name, value in {**fixed, "cta_swizzle": swizzle, "custom_option": custom}.items():
        rows[:, COLUMN[name]] = value
    yield from torch.split(rows, PORTION_ROWS)
