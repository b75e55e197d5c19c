"""What a report shows of a period: its runs, their last verdicts, and timings over time.

A period is told by when runs started; rows are those of its runs. For timings and verdicts what
came before the period is read, too, since a regression is one against something earlier.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kclab.core.sessions import Shift, compare_sessions
from kclab.db.queries.fc2 import CONFIG_TEXT
from kclab.db.queries.fc2_history import changes
from kclab.db.queries.timing_compare import timed_session

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Period:
    """From when to when runs started, microseconds UTC; None bounds nothing."""

    since_us: int | None = None
    until_us: int | None = None
    """Exclusive."""

    def holds(self, instant: int) -> bool:
        """Whether a time lies within."""
        return (self.since_us or 0) <= instant and instant < (self.until_us or 2**63)

    @property
    def bounds(self) -> tuple[int, int]:
        """For `BETWEEN`-like conditions: at or after the first, before the second."""
        return self.since_us or 0, 2**63 - 1 if self.until_us is None else self.until_us


LAST_VERDICTS = """
    SELECT id, definition, subject, capture_id, status, started_us, run FROM (
        SELECT p.id, p.definition, p.subject, p.capture_id, p.status, p.started_us, r.uuid AS run,
            row_number() OVER (PARTITION BY p.definition, p.subject, p.capture_id, p.origin
                ORDER BY p.started_us DESC, p.id DESC) AS place
        FROM replay p JOIN run r ON r.id = p.run_id
        WHERE r.started_us >= ? AND r.started_us < ?)
    WHERE place = 1
"""


def verdict_counts(connection: sqlite3.Connection, period: Period) -> list[Row]:
    """For each definition how many workloads came out how, by their last verdict in the period."""
    rows = connection.execute(
        "SELECT definition, count(*) AS replayed,"
        + ",".join(f" sum(status = '{s}') AS {s}" for s in ("passed", "failed", "error", "skipped"))
        + f" FROM ({LAST_VERDICTS}) GROUP BY definition"
        " ORDER BY sum(status IN ('failed', 'error')) DESC, definition",
        period.bounds,
    )
    return [dict(row) for row in rows]


def failed_verdicts(connection: sqlite3.Connection, period: Period) -> list[Row]:
    """Ids of last verdicts that failed or broke, `regressed` (passed before) ones first, then the
    largest share of elements.
    """
    rows = connection.execute(
        "SELECT v.id, v.run, EXISTS (SELECT 1 FROM replay q WHERE q.subject = v.subject"
        "   AND q.definition = v.definition AND q.capture_id IS v.capture_id"
        "   AND q.status = 'passed' AND q.started_us < v.started_us) AS regressed"
        f" FROM ({LAST_VERDICTS}) v WHERE v.status IN ('failed', 'error')"
        " ORDER BY regressed DESC, (SELECT max(1.0 * mismatched / max(elements, 1))"
        "   FROM replay_output o WHERE o.replay_id = v.id) DESC, v.id",
        period.bounds,
    )
    return [dict(row) for row in rows]


MEASURED = """
    SELECT 'measurement' AS kind, m.name AS title, NULL AS place, NULL AS workload,
        m.id, m.ratio, m.ratio_low, m.ratio_high, NULL AS floor, m.candidate_ms AS ms, m.verdict,
        NULL AS result_id, r.uuid AS run, r.started_us, r.started_us AS at_us, e.facts
    FROM measurement m JOIN run r ON r.id = m.run_id JOIN environment e ON e.id = r.environment_id
    WHERE r.started_us < ? AND NOT EXISTS (SELECT 1 FROM fc2_result f WHERE f.measurement_id = m.id)
    ORDER BY r.started_us, m.id
"""

SEARCHED = f"""
    SELECT 'fc2' AS kind, b.m || 'x' || b.n || 'x' || b.k || ' ' || b.precision
            || CASE WHEN b.fast_accumulation THEN '+fast' ELSE '' END AS title,
        {CONFIG_TEXT} || ' ' || f.scope || coalesce(' on ' || v.gpu, '') AS place,
        w.uuid AS workload, f.measurement_id AS id, f.ratio, f.ratio_low, f.ratio_high, f.floor,
        f.b_ms AS ms, f.verdict, f.id AS result_id, r.uuid AS run, r.started_us,
        f.measured_us AS at_us, v.facts
    FROM fc2_result f JOIN fc2_boundary b ON b.id = f.boundary_id
        JOIN workload w ON w.id = b.workload_id JOIN algo_config c ON c.id = f.config_id
        JOIN fc2_validity v ON v.id = f.validity_id JOIN run r ON r.id = f.run_id
    WHERE r.started_us < ? AND NOT f.is_control ORDER BY f.measured_us, f.id
"""  # a control against itself is 1 by definition


@dataclass(frozen=True, slots=True)
class Series:
    """One timing over time: measurements of one name, or of one config on one workload."""

    points: list[Row]
    """Oldest first; `changed` names what the environment had of another version before."""
    shift: Shift | None
    """The newest point against the one before; None for a single point."""

    @property
    def newest(self) -> Row:
        """The last point, which lies in the period."""
        return self.points[-1]

    @property
    def slower(self) -> bool:
        """Whether the newest is proven slower than the one before."""
        return self.shift is not None and self.shift.verdict == "SLOW"


def timing_series(connection: sqlite3.Connection, period: Period) -> list[Series]:
    """Every timing that the period's runs took, with its past; proven regressions first."""
    until = period.bounds[1]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for sql in (MEASURED, SEARCHED):
        for row in map(dict, connection.execute(sql, (until,))):
            key = tuple(row[name] for name in ("kind", "title", "place", "workload"))
            found.setdefault(key, []).append(row)
    kept = (points for points in found.values() if period.holds(points[-1]["started_us"]))
    series = [Series(_marked(points), _last_shift(connection, points)) for points in kept]
    return sorted(series, key=lambda one: (not one.slower, -len(one.points)))


def _last_shift(connection: sqlite3.Connection, points: list[Row]) -> Shift | None:
    if len(points) < 2:
        return None
    return compare_sessions(*(timed_session(connection, point) for point in points[-2:]))


def _marked(points: Iterable[Row]) -> list[Row]:
    marked: list[Row] = []
    before: str | None = None
    for point in points:
        facts = point.pop("facts")
        same = before is None or facts == before
        changed = None if same else changes(json.loads(before or "{}"), json.loads(facts))
        marked.append({**point, "changed": changed})
        before = facts
    return marked


def period_environments(connection: sqlite3.Connection, period: Period) -> list[Row]:
    """The environments that the period's runs had: `sha256`, `runs`, first and last use, facts."""
    rows = connection.execute(
        "SELECT e.sha256, count(*) AS runs, min(r.started_us) AS first_us,"
        " max(r.started_us) AS last_us, e.facts FROM run r"
        " JOIN environment e ON e.id = r.environment_id"
        " WHERE r.started_us >= ? AND r.started_us < ? GROUP BY e.id ORDER BY min(r.started_us)",
        period.bounds,
    )
    return [{**dict(row), "facts": json.loads(row["facts"])} for row in rows]


def period_errors(
    connection: sqlite3.Connection, period: Period, limit: int
) -> tuple[list[Row], int]:
    """The newest errors inside the period's runs, and how many there are."""
    rows = connection.execute(
        "SELECT r.uuid AS run, e.operation, e.kind, e.message, count(*) OVER () AS all_of_them"
        " FROM error e JOIN run r ON r.id = e.run_id WHERE r.started_us >= ? AND r.started_us < ?"
        " ORDER BY e.id DESC LIMIT ?",
        (*period.bounds, limit),
    )
    found = [dict(row) for row in rows]
    return found, found[0]["all_of_them"] if found else 0
