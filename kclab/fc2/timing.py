"""Taking timings in rounds: every round holds the control, and its order is shuffled.

What drifts (clocks, temperature, a neighbour) hits a round's arms alike; `kclab.core.stats` makes
ratios within rounds of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kclab.core.stats import Sample
from kclab.fc2.backends import Clock
from kclab.fc2.gpu import NO_GPU, Watcher

NEVER = float("inf")


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
    next_round: int = 0

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def shuffled(self, arms: Sequence[Arm], rounds: int) -> list[Sample]:
        """Each arm once a round, in an order of its own."""
        return self._take(arms, rounds, lambda order: order)

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


def warm_up(arms: Sequence[Arm], synchronize: Callable[[], None], times: int = 2) -> None:
    """Launch each arm untimed: a first launch loads its kernel."""
    for arm in arms:
        for _ in range(times):
            arm.launch()
    synchronize()
