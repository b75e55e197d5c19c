"""Two runs against each other: what got better, worse, appeared or vanished from A to B.

Verdicts are joined by workload and site, then, what is left, by site alone (another release may
compute other inputs for the same place). Captures are joined by site, timings by name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from kclab.db.queries.capture_diff import Match, SiteMatch, match_sites
from kclab.db.queries.compared import Change, Compared, Row, join_rows
from kclab.db.queries.timing_compare import compare_timings


def compare_runs(connection: sqlite3.Connection, run_a: int, run_b: int) -> list[Compared]:
    """Everything that both or either of two runs (ids) found, worst changes first."""
    order = list(Change)
    found = [
        *_verdicts(connection, run_a, run_b),
        *(_capture(match) for match in match_sites(connection, run_a, run_b)),
        *compare_timings(connection, run_a, run_b),
    ]
    return sorted(found, key=lambda compared: order.index(compared.change))


def _verdicts(connection: sqlite3.Connection, run_a: int, run_b: int) -> Iterable[Compared]:
    first, second = _replays(connection, run_a), _replays(connection, run_b)
    pairs, first, second = join_rows(
        first, second, lambda r: (r["definition"], r["subject"], r["site"])
    )
    by_site, first, second = join_rows(
        first, second, lambda r: ("site", r["site"]) if r["site"] else ("row", r["id"])
    )
    by_workload, first, second = join_rows(first, second, lambda r: (r["definition"], r["subject"]))
    for a, b in [*pairs, *by_site, *by_workload]:
        yield _verdict(_verdict_change(a, b), a, b)
    yield from (_verdict(Change.VANISHED, a, None) for a in first)
    yield from (_verdict(Change.APPEARED, None, b) for b in second)


def _replays(connection: sqlite3.Connection, run_id: int) -> list[Row]:
    return connection.execute(
        "SELECT p.id, p.subject, p.definition, p.status, p.reason, c.site, c.module_path,"
        " c.operation, c.step, c.rank,"
        " (SELECT sum(mismatched) FROM replay_output o WHERE o.replay_id = p.id) AS mismatched,"
        " (SELECT sum(elements) FROM replay_output o WHERE o.replay_id = p.id) AS elements"
        " FROM replay p LEFT JOIN capture c ON c.id = p.capture_id"
        " WHERE p.run_id = ? ORDER BY p.id",
        (run_id,),
    ).fetchall()


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
        return f"{row['status']} {row['mismatched']:,}/{row['elements']:,}"
    return str(row["status"])


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


def _told_match(match: SiteMatch) -> str:
    return "captured" if match.a is None else match.match.value
