"""cuBLASLt's explicit configs as rows of nine integers: one knob away, or all of them.

Capabilities list tiles, stages, split-K, reductions, swizzles and custom options. Clusters and
inner shapes are listed nowhere; they are tried. Checking a config costs one to two microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


def portions(knobs: list[Knobs]) -> Iterator[Tensor]:
    """Every combination, int32 [n, 9] at a time.

    All algorithms' plain configs (no split-K, swizzle or custom option) come before any other:
    they are most of what is fast.
    """
    for each in knobs:
        yield from _product(each, ((1, 0),), (0,), (0,))
    for each in knobs:
        combinations = [
            (split, swizzle, custom)
            for split in each.splits
            for swizzle in each.swizzles
            for custom in each.customs
            if (split, swizzle, custom) != ((1, 0), 0, 0)
        ]
        for split, swizzle, custom in combinations:
            yield from _product(each, (split,), (swizzle,), (custom,))


def _product(
    knobs: Knobs,
    splits: tuple[tuple[int, int], ...],
    swizzles: tuple[int, ...],
    customs: tuple[int, ...],
) -> Iterator[Tensor]:
    axes = [
        torch.tensor(values, dtype=torch.int32)
        for values in (knobs.tiles, knobs.stages, range(len(splits)), swizzles, customs, CLUSTERS)
    ]
    tile, stages, split, swizzle, custom, cluster = torch.cartesian_prod(*axes).unbind(1)
    pairs = torch.tensor(splits, dtype=torch.int32)[split.long()]
    columns = {
        "algorithm_id": torch.full_like(tile, knobs.algorithm_id),
        "tile_id": tile,
        "stages_id": stages,
        "split_k": pairs[:, 0],
        "reduction_scheme": pairs[:, 1],
        "cta_swizzle": swizzle,
        "custom_option": custom,
        "inner_shape": torch.zeros_like(tile),
        "cluster_shape": cluster,
    }
    rows = torch.stack([columns[name] for name in NAMES], dim=1)
    yield from torch.split(rows, PORTION_ROWS)
