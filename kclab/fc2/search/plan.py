"""Which untried configs to look at next: those that what was timed says are fast.

The logarithm of a ratio is taken as a sum of effects: of an algorithm's tile, of its cluster, of a
tile with a split, and so on. Effects are means of what the others leave over, drawn towards zero
where little was seen (backfitting with shrinkage: Hastie & Tibshirani, Generalized Additive Models,
4.3). It need not be right, only better than chance: the clock decides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

import torch

from kclab.fc2.backends import Candidate
from kclab.fc2.config import NAMES, AlgorithmConfig

EFFECTS = (
    ("algorithm_id", "tile_id"),
    ("algorithm_id", "stages_id"),
    ("algorithm_id", "cluster_shape"),
    ("algorithm_id", "custom_option"),
    ("algorithm_id", "split_k", "reduction_scheme"),
    ("cta_swizzle", "cluster_shape"),
    ("tile_id", "split_k"),
    ("tile_id", "stages_id"),
    ("tile_id", "cluster_shape"),
    ("tile_id", "custom_option"),
)
SWEEPS = 3
SHRINK = 2.0
"""Observations of a zero effect that every effect starts with."""
EXPLORED = 0.25
"""Share of each choice that is drawn at random: what the sum of effects misses."""
FIT_SERVES = 1024
"""Configs that one fit chooses at most."""
BASE = 1 << 12
"""More than any of the nine numbers reaches for the fields above."""


class Order(Protocol):
    """In which order a space is looked at."""

    @property
    def left(self) -> int:
        """Configs that were not given out yet."""
        ...

    def observe(self, config: AlgorithmConfig, ratio: float) -> None:
        """A config of the space was timed, or launches what was."""
        ...

    def next(self, count: int) -> list[Candidate]:
        """At most `count` untried candidates."""
        ...


class Shuffled:
    """All of a space in no order: what an exhaustive pass takes."""

    def __init__(self, candidates: Sequence[Candidate], draw: random.Random):
        self._left = list(candidates)
        draw.shuffle(self._left)

    @property
    def left(self) -> int:
        """Configs that were not given out yet."""
        return len(self._left)

    def observe(self, config: AlgorithmConfig, ratio: float) -> None:
        """Changes nothing."""

    def next(self, count: int) -> list[Candidate]:
        """The next `count`."""
        chosen = self._left[-count:]
        del self._left[-count:]
        return chosen


class Plan:
    """The untried part of a space, and what is known of it."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        known: Sequence[tuple[AlgorithmConfig, float]],
        draw: random.Random,
    ):
        """`known` are (config, control / config) of what was timed before."""
        self._candidates = candidates
        self._draw = draw
        self._places = {candidate.config: i for i, candidate in enumerate(candidates)}
        configs = [*self._places, *(config for config, _ in known)]
        rows = torch.tensor([config.key for config in configs]).reshape(-1, len(NAMES))
        self._groups = [_numbered(rows, names) for names in EFFECTS]
        self._untried = torch.zeros(len(configs), dtype=torch.bool)
        self._untried[: len(candidates)] = True
        self._queue: list[int] = []
        self._seen: list[int] = []
        self._logs: list[float] = []
        for place, (_, ratio) in enumerate(known, start=len(candidates)):
            self._note(place, ratio)

    @property
    def left(self) -> int:
        """Configs that were not given out yet."""
        return int(self._untried.sum()) + len(self._queue)

    def observe(self, config: AlgorithmConfig, ratio: float) -> None:
        """A config of the space was timed, or launches what was."""
        self._note(self._places[config], ratio)

    def _note(self, place: int, ratio: float) -> None:
        self._seen.append(place)
        self._logs.append(math.log(ratio))

    def next(self, count: int) -> list[Candidate]:
        """At most `count` untried candidates: promising ones, and some drawn at random."""
        if not self._queue:
            # A fit costs as much as timing a portion; its answer serves the longer the more it saw.
            self._queue = self._choose(max(count, min(len(self._seen) // 2, FIT_SERVES)))
        chosen, self._queue = self._queue[:count], self._queue[count:]
        return [self._candidates[place] for place in chosen]

    def _choose(self, count: int) -> list[int]:
        untried = self._untried.nonzero().reshape(-1)
        explored = count if not self._seen else max(int(count * EXPLORED), 1)
        order = self._promise()[untried].argsort(descending=True)
        best = untried[order[: count - explored]].tolist()
        rest = untried[order[count - explored :]].tolist()
        chosen: list[int] = best + self._draw.sample(rest, min(explored, len(rest)))
        self._untried[torch.tensor(chosen, dtype=torch.int64)] = False
        self._draw.shuffle(chosen)
        return chosen

    def _promise(self) -> torch.Tensor:
        """float32 [configs]: the expected log ratio of each."""
        if not self._seen:
            return torch.zeros(len(self._untried))
        seen = torch.tensor(self._seen)
        logs = torch.tensor(self._logs, dtype=torch.float32)
        mean = logs.mean()
        left_over = logs - mean
        effects = [torch.zeros(int(group.max()) + 1) for group in self._groups]
        for _ in range(SWEEPS):
            for number, group in enumerate(self._groups):
                own = group[seen]
                partial = left_over + effects[number][own]
                effects[number] = _shrunk_means(own, partial, len(effects[number]))
                left_over = partial - effects[number][own]
        total = mean.repeat(len(self._untried))
        for effect, group in zip(effects, self._groups, strict=True):
            total += effect[group]
        return total


def _shrunk_means(groups: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    sums = torch.zeros(count).index_add_(0, groups, values)
    sizes = torch.zeros(count).index_add_(0, groups, torch.ones_like(values))
    return sums / (sizes + SHRINK)


def _numbered(rows: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """int64 [n]: which combination of the named numbers each row has, counted from 0."""
    code = torch.zeros(len(rows), dtype=torch.int64)
    for name in names:
        code = code * BASE + rows[:, NAMES.index(name)]
    return torch.unique(code, return_inverse=True)[1]
