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
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import torch

from kclab.fc2.backends import Candidate
from kclab.fc2.config import NAMES, AlgorithmConfig
from kclab.fc2.threads import threads

if TYPE_CHECKING:
    from torch import Tensor

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
        rows = torch.tensor(list(chain.from_iterable(config.key for config in configs)))
        rows = rows.reshape(-1, len(NAMES)).long()
        with threads(1):
            self._groups = [_numbered(rows, names) for names in EFFECTS]
        self._sizes = [int(group.max()) + 1 if len(group) else 1 for group in self._groups]
        self._untried = torch.arange(len(configs)) < len(candidates)
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
        # Waking a pool of threads costs more than these sums.
        with threads(1):
            ordered = untried[self._promise()[untried].argsort(descending=True)].tolist()
        best, rest = ordered[: count - explored], ordered[count - explored :]
        chosen: list[int] = best + self._draw.sample(rest, min(explored, len(rest)))
        self._untried[torch.tensor(chosen, dtype=torch.int64)] = False
        self._draw.shuffle(chosen)
        return chosen

    def _promise(self) -> Tensor:
        """float64 [configs]: the expected log ratio of each."""
        total = torch.zeros(len(self._untried), dtype=torch.float64)
        if not self._seen:
            return total
        logs = torch.tensor(self._logs, dtype=torch.float64)
        left_over = logs - logs.mean()
        seen = torch.tensor(self._seen)
        own = [group[seen] for group in self._groups]
        effects = [torch.zeros(size, dtype=torch.float64) for size in self._sizes]
        for _ in range(SWEEPS):
            for number, groups in enumerate(own):
                partial = left_over + effects[number][groups]
                effects[number] = _shrunk_means(groups, partial, len(effects[number]))
                left_over = partial - effects[number][groups]
        for effect, group in zip(effects, self._groups, strict=True):
            total += effect[group]
        return total


def _shrunk_means(groups: Tensor, values: Tensor, count: int) -> Tensor:
    sums = torch.bincount(groups, values, count)
    means: Tensor = sums / (torch.bincount(groups, minlength=count) + SHRINK)
    return means


def _numbered(rows: Tensor, names: Sequence[str]) -> Tensor:
    """int64 [n]: a number for the combination that each row has of the named numbers.

    Combinations that are nowhere get numbers too: at most some ten thousand, and no sorting.
    """
    code = torch.zeros(len(rows), dtype=torch.int64)
    for name in names:
        column = rows[:, NAMES.index(name)]
        code = code * (int(column.max()) + 1) + column if len(rows) else code
    return code
