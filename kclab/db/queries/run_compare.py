"""Two runs against each other: what got better, worse, appeared or vanished from A to B.

Verdicts are joined by workload and site, then, what is left, by site alone (another release may
compute other inputs for the same place). Captures are joined by site, timings by name.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kclab.core.stats import MARGIN
from kclab.db.queries.capture_diff import Match, SiteMatch, match_sites
from kclab.db.queries.run_details import measurements


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


Row = Mapping[str, Any]
Key = Callable[[Row], Hashable]


def compare_runs(connection: sqlite3.Connection, run_a: int, run_b: int) -> list[Compared]:
    """Everything that both or either of two runs (ids) found, worst changes first."""
    order = list(Change)
    found = [
        *_verdicts(connection, run_a, run_b),
        *(_capture(match) for match in match_sites(connection, run_a, run_b)),
        *_timings(connection, run_a, run_b),
    ]
    return sorted(found, key=lambda compared: order.index(compared.change))


def _verdicts(connection: sqlite3.Connection, run_a: int, run_b: int) -> Iterable[Compared]:
    first, second = _replays(connection, run_a), _replays(connection, run_b)
    pairs, first, second = _join(
        first, second, lambda r: (r["definition"], r["subject"], r["site"])
    )
    by_site, first, second = _join(
        first, second, lambda r: ("site", r["site"]) if r["site"] else ("row", r["id"])
    )
    by_workload, first, second = _join(first, second, lambda r: (r["definition"], r["subject"]))
    for a, b in [*pairs, *by_site, *by_workload]:
        yield _verdict(_verdict_change(a, b), a, b)
    yield from (_verdict(Change.VANISHED, a, None) for a in first)
    yield from (_verdict(Change.APPEARED, None, b) for b in second)


def _replays(connection: sqlite3.Connection, run_id: int) -> list[Row]:
    return connection.execute(
        "SELECT p.id, p.subject, p.definition, p.status, p.reason, c.site, c.module_path,"
        " c.operation, c.step, c.rank,"
        " (SELECT sum(mismatched) FROM replay_output o WHERE o.replay_id = p.id) AS mismatched,"
        " (SELECT sum(elements) FROM replay_output o WHERE o.replay_id = p.id) AS elements,"
        " (SELECT max(relative_rms) FROM replay_output o WHERE o.replay_id = p.id) AS error"
        " FROM replay p LEFT JOIN capture c ON c.id = p.capture_id"
        " WHERE p.run_id = ? ORDER BY p.id",
        (run_id,),
    ).fetchall()


def _join(
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


RANKS = {"passed": 2, "failed": 1, "error": 0}
"""Verdicts from worst to best; `skipped` compares with nothing."""


def _verdict_change(a: Row, b: Row) -> Change:
    if a["status"] == b["status"]:
        before, after = a["mismatched"] or 0, b["mismatched"] or 0
        if a["status"] != "failed" or before == after:
            return Change.SAME
        return Change.WORSE if after > before else Change.BETTER
    if a["status"] not in RANKS or b["status"] not in RANKS:
        return Change.CHANGED
    return Change.BETTER if RANKS[b["status"]] > RANKS[a["status"]] else Change.WORSE


def _verdict(change: Change, a: Row | None, b: Row | None) -> Compared:
    row = b if b is not None else a
    assert row is not None
    return Compared(
        change=change,
        kind="verdict",
        name=row["definition"],
        workload=row["subject"],
        module_path=row["module_path"],
        operation=row["operation"],
        step=row["step"],
        rank=row["rank"],
        before=None if a is None else _told(a),
        after=None if b is None else _told(b),
    )


def _told(row: Row) -> str:
    if row["mismatched"]:
        return f"{row['status']}: {row['mismatched']:,} of {row['elements']:,} off"
    error = "" if row["error"] is None else f" (error {row['error']:.1e})"
    return f"{row['status']}{error}"


CAPTURE_CHANGES = {
    Match.IDENTICAL: Change.SAME,
    Match.OUTPUTS_DIFFER: Change.CHANGED,
    Match.INPUTS_DIFFER: Change.CHANGED,
    Match.ONLY_A: Change.VANISHED,
    Match.ONLY_B: Change.APPEARED,
}


def _capture(match: SiteMatch) -> Compared:
    place = match.place
    return Compared(
        change=CAPTURE_CHANGES[match.match],
        kind="capture",
        name=place.definition,
        workload=place.workload,
        module_path=place.module_path,
        operation=place.operation,
        step=place.step,
        rank=place.rank,
        before=None if match.a is None else "captured",
        after=None
        if match.b is None
        else match.match.value.removeprefix("only in B") or "captured",
    )


def _timings(connection: sqlite3.Connection, run_a: int, run_b: int) -> Iterable[Compared]:
    pairs, first, second = _join(
        [*measurements(connection, run_a)],
        [*measurements(connection, run_b)],
        lambda row: row["name"],
    )
    for a, b in pairs:
        yield _timing(_timing_change(a, b), a, b)
    yield from (_timing(Change.VANISHED, a, None) for a in first)
    yield from (_timing(Change.APPEARED, None, b) for b in second)


def _timing_change(a: Row, b: Row) -> Change:
    """Ratios to each run's own control are compared: they hold where clocks or machines differ.

    A change counts when the confidence intervals do not overlap and it is beyond MARGIN.
    """
    if a["ratio"] is None or b["ratio"] is None:
        return Change.SAME if a["ratio"] == b["ratio"] else Change.CHANGED
    gain = b["ratio"] / a["ratio"]
    if b["ratio_low"] is not None and a["ratio_high"] is not None and gain > 1 + MARGIN:
        return Change.BETTER if b["ratio_low"] > a["ratio_high"] else Change.SAME
    if b["ratio_high"] is not None and a["ratio_low"] is not None and gain < 1 / (1 + MARGIN):
        return Change.WORSE if b["ratio_high"] < a["ratio_low"] else Change.SAME
    return Change.SAME


def _timing(change: Change, a: Row | None, b: Row | None) -> Compared:
    row = b if b is not None else a
    assert row is not None
    return Compared(
        change=change,
        kind="timing",
        name=row["name"],
        workload=None,
        module_path=None,
        operation=None,
        step=None,
        rank=None,
        before=None if a is None else _told_ratio(a),
        after=None if b is None else _told_ratio(b),
    )


def _told_ratio(row: Row) -> str:
    if row["ratio"] is None:
        return "not measured" if row["candidate_ms"] is None else f"{row['candidate_ms']:.4g} ms"
    if row["ratio_low"] is None or row["ratio_high"] is None:
        return f"{row['ratio']:.3f}x"
    return f"{row['ratio']:.3f}x ({row['ratio_low']:.3f}..{row['ratio_high']:.3f})"
