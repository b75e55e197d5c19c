"""The race: a few samples of everything, then more of what is left, the control in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kclab.core.stats import median, ratios_by_arm
from kclab.fc2.backends import Refused
from kclab.fc2.bench import CONTROL_ARM, Bench
from kclab.fc2.search.pool import Entry, Pool
from kclab.fc2.timing import Arm, Rounds


@dataclass(frozen=True, slots=True)
class Heat:
    """One step of the race."""

    rounds: int
    slack: float
    """Entries slower than the best of their group by more than this factor leave."""
    most: int
    """Entries of a group that stay at most."""


HEATS = (Heat(3, 1.15, 32), Heat(4, 1.05, 12), Heat(8, 1.03, 6))
"""Two samples decide little, so the first heat only drops what is far off (PyTorch's TunableOp
drops at 1.5x after three samples and at 1.15x after ten)."""


class Race:
    """Races entries of a pool; every ratio is within rounds of one clock."""

    def __init__(self, bench: Bench, pool: Pool, rounds: Rounds):
        self._bench = bench
        self._pool = pool
        self._rounds = rounds
        self._control = Arm(CONTROL_ARM, bench.runner(bench.control.prepared))

    def run(self, entries: Sequence[Entry], heats: Sequence[Heat] = HEATS) -> list[Entry]:
        """The entries left after all heats, fastest first."""
        left = [entry for entry in entries if entry.status == "valid"]
        for heat in heats:
            if not left or (self._rounds.late() and all(entry.samples for entry in left)):
                break
            self._heat(left, heat.rounds)
            left = self.cut(left, heat)
        return sorted(left, key=_speed, reverse=True)

    def time(self, entries: Sequence[Entry], rounds: int) -> None:
        """Time entries without dropping any; one that refuses to run says why."""
        timed = [entry for entry in entries if entry.status == "valid"]
        if not timed:
            return
        prepared = [entry.prepared for entry in timed]
        control = self._bench.control.prepared
        found = self._rounds.series(self._bench.gemm, control, prepared, rounds)
        for entry, ratios in zip(timed, found, strict=True):
            if None in ratios:
                self._pool.try_out(entry)
            note_ratios(entry, [ratio for ratio in ratios if ratio])

    def cut(self, entries: Sequence[Entry], heat: Heat) -> list[Entry]:
        """The exact entries near the fastest exact one, and the sound ones near the fastest sound.

        Entries are examined from the fastest down, as far as it takes: a wrong one sets no bar.
        """
        timed = sorted((e for e in entries if e.ratio is not None), key=_speed, reverse=True)
        near = _near(timed, heat, self._sound)
        exact = _near(timed, heat, self._counts)
        kept = {id(entry) for entry in (*near, *exact)}
        return [entry for entry in timed if id(entry) in kept]

    def _sound(self, entry: Entry) -> bool:
        self._pool.examine(entry)
        return entry.sound

    def _counts(self, entry: Entry) -> bool:
        if self._pool.same(entry):
            self._pool.examine(entry)
        return entry.counts

    def _heat(self, entries: Sequence[Entry], rounds: int) -> None:
        arms = [self._control, *(self._arm(entry) for entry in entries)]
        try:
            taken = self._rounds.shuffled(arms, rounds)
        except Refused:
            self._drop_refusing(entries)
            return
        ratios = ratios_by_arm(taken, CONTROL_ARM)
        for entry in entries:
            note_ratios(entry, ratios.get(entry.name, ()))

    def _drop_refusing(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            try:
                self._bench.gemm.run(entry.prepared)
            except Refused as refusal:
                entry.status, entry.reason = "failed", str(refusal)

    def _arm(self, entry: Entry) -> Arm:
        return Arm(entry.name, self._bench.runner(entry.prepared))


def note_ratios(entry: Entry, ratios: Sequence[float]) -> None:
    """Join new samples to an entry's running ratio, weighted by their number."""
    if not ratios:
        return
    new, before = median(ratios), entry.samples
    entry.samples += len(ratios)
    old = new if entry.ratio is None else entry.ratio
    entry.ratio = (old * before + new * len(ratios)) / entry.samples


def _speed(entry: Entry) -> float:
    return entry.ratio or 0.0


def _near(ordered: Sequence[Entry], heat: Heat, wanted: Callable[[Entry], bool]) -> list[Entry]:
    """The fastest wanted entries within the heat's slack; `ordered` is fastest first."""
    kept: list[Entry] = []
    for entry in ordered:
        if len(kept) == heat.most or (kept and _speed(entry) * heat.slack < _speed(kept[0])):
            break
        if wanted(entry):
            kept.append(entry)
    return kept
