"""One thing in two runs: what became of it from A to B, and how such things are joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Row = Mapping[str, Any]
Key = Callable[[Row], Hashable]


class Change(StrEnum):
    """What happened to one thing from run A to run B."""

    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"
    """Other inputs or outputs, which is neither better nor worse by itself."""
    UNDECIDED = "undecided"
    """Timed in both, but neither a change nor sameness is proven."""
    APPEARED = "appeared"
    VANISHED = "vanished"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload, site or measurement in two runs."""

    change: Change
    kind: str
    """`verdict`, `capture` or `timing`."""
    name: str
    """The definition's, or the measurement's."""
    workload: str | None
    module_path: str | None
    operation: str | None
    step: int | None
    rank: int | None
    before: str | None
    """What run A found; None where it has no such thing."""
    after: str | None
    gain: float | None = None
    """Of a timing: time before / after, above 1 where it became faster."""
    gain_low: float | None = None
    gain_high: float | None = None
    """The gain's confidence interval; None where it is unbounded."""
    noise: float | None = None
    """The noise floor: relative differences up to this decide nothing."""
    verdict: str | None = None
    """A timing's `kclab.core.stats.Verdict`, B against A."""
    basis: str | None = None
    """What the gain rests on, a `kclab.core.sessions.Basis`."""

    @property
    def comparable(self) -> bool:
        """Whether both runs have it."""
        return self.before is not None and self.after is not None


def join_rows(
    first: list[Row], second: list[Row], key: Key
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """(pairs with an equal key, matched in order; what is left of each side)."""
    waiting: dict[Hashable, list[Row]] = defaultdict(list)
    for row in reversed(second):
        waiting[key(row)].append(row)
    pairs, left = [], []
    for row in first:
        partners = waiting[key(row)]
        if partners:
            pairs.append((row, partners.pop()))
        else:
            left.append(row)
    taken = {id(b) for _, b in pairs}
    return pairs, left, [row for row in second if id(row) not in taken]


def told_counts(counts: Mapping[Change, int]) -> str:
    """`1 worse, 0 better, …`: how many changes of each kind; undecided only where some are."""
    shown = (c for c in Change if c is not Change.UNDECIDED or counts.get(c))
    return ", ".join(f"{counts.get(change, 0):,} {change}" for change in shown)
