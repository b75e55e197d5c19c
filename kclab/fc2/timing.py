"""Taking timings in rounds: every round holds the control, and its order is shuffled.

What drifts (clocks, temperature, a neighbour) hits a round's arms alike; `kclab.core.stats` makes
ratios within rounds of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kclab.core.stats import Sample, median
from kclab.fc2.backends import Clock, Gemm
from kclab.fc2.gpu import NO_GPU, Watcher

NEVER = float("inf")

SETTLE_WINDOW, SETTLED = 0.4, 0.002
"""Seconds of load, and the change from one to the next at which clocks are said to stand."""

CONTROL_EVERY = 16
"""Samples of others between two of the control, in a series."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Something to time, by the name that its samples carry."""

    name: str
    launch: Callable[[], None]


@dataclass(slots=True)
class Rounds:
    """Times arms on a clock; rounds are numbered on over its life."""

    clock: Clock
    random: random.Random
    deadline: float = NEVER
    """`time.monotonic()` after which no further round is begun."""
    gpu: Watcher = NO_GPU
    glances: list[tuple[int | None, ...]] = field(default_factory=list)
    """`GLANCE` of each mirrored round, read after its last sample: never while one is timed."""
    screened: list[tuple[int | None, ...]] = field(default_factory=list)
    """The same after each series and each heat, with the number of its last round."""
    next_round: int = 0

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def shuffled(self, arms: Sequence[Arm], rounds: int) -> list[Sample]:
        """Each arm once a round, in an order of its own."""
        taken = self._take(arms, rounds, lambda order: order)
        self._look_after_screening()
        return taken

    def mirrored(self, arms: Sequence[Arm], rounds: int) -> list[Sample]:
        """Each arm twice a round: shuffled, then backwards (ABBA for two arms).

        A drift that is linear over the round then cancels, and each arm's two samples are an A/A
        pair.
        """
        taken: list[Sample] = []
        for _ in range(rounds):
            if self.late() and taken:
                break
            taken += self._take(arms, 1, lambda order: [*order, *reversed(order)])
            seen = self.gpu.glance()
            if seen is not None:
                self.glances.append((taken[-1].round, *seen))
        return taken

    def settle(self, arms: Sequence[Arm], control: str) -> None:
        """Time without keeping anything until the control's median no longer moves.

        Windows of `SETTLE_WINDOW` seconds are compared, `clock.settles` seconds at most.
        """
        ends = time.monotonic() + self.clock.settles
        before = 0.0
        while time.monotonic() < ends:
            window = time.monotonic() + min(SETTLE_WINDOW, self.clock.settles / 2)
            taken: list[float] = []
            while time.monotonic() < window:
                for arm in arms:
                    milliseconds = self.clock.sample(arm.launch)
                    if arm.name == control:
                        taken.append(milliseconds)
            now = median(taken) if taken else before
            if abs(now - before) <= SETTLED * now:
                return
            before = now

    def series(
        self, gemm: Gemm, control: Any, prepared: Sequence[Any], rounds: int
    ) -> list[list[float | None]]:
        """Ratios control / `prepared[i]`, one a round; None where it was refused.

        For screening: the control is met again and again within a round, and its median there
        stands for it, since one sample of it would shift everybody's ratio alike.
        """
        ratios: list[list[float | None]] = [[] for _ in prepared]
        for number in range(rounds):
            if number and self.late():
                break
            self._one_series(gemm, [control, *prepared], ratios)
            self.next_round += 1
            self._look_after_screening()
        return ratios

    def _look_after_screening(self) -> None:
        if (seen := self.gpu.glance()) is not None:
            self.screened.append((self.next_round - 1, *seen))

    def _one_series(
        self, gemm: Gemm, prepared: Sequence[Any], ratios: list[list[float | None]]
    ) -> None:
        order = list(range(1, len(prepared)))
        self.random.shuffle(order)
        mixed = [0]
        for begin in range(0, len(order), CONTROL_EVERY):
            mixed += [0, *order[begin : begin + CONTROL_EVERY]]
        mixed.append(0)
        took = self.clock.series(gemm, prepared, mixed)
        # The first sample fills the queue: whatever the host does before it is in its time.
        controls = [ms for place, ms in zip(mixed[1:], took[1:], strict=True) if not place and ms]
        own = median(controls)
        for place, ms in zip(mixed, took, strict=True):
            if place:
                ratios[place - 1].append(own / ms if ms else None)

    def _take(
        self, arms: Sequence[Arm], rounds: int, layout: Callable[[list[Arm]], list[Arm]]
    ) -> list[Sample]:
        taken: list[Sample] = []
        for _ in range(rounds):
            if self.late() and taken:
                break
            order = list(arms)
            self.random.shuffle(order)
            for position, arm in enumerate(layout(order)):
                milliseconds = self.clock.sample(arm.launch)
                taken.append(Sample(self.next_round, position, arm.name, milliseconds))
            self.next_round += 1
        return taken


def warm_up(arms: Sequence[Arm], synchronize: Callable[[], None], times: int) -> None:
    """Launch each arm untimed: a first launch loads its kernel."""
    for arm in arms:
        for _ in range(times):
            arm.launch()
    synchronize()
