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
