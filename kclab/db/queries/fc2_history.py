"""A config over time: every measurement against the one before it on the same GEMM."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from kclab.core.sessions import Shift, compare_sessions
from kclab.db.queries.fc2 import CONFIG, FIELDS, FROM, GATES
from kclab.db.queries.timing_compare import shift_fields, timed_session


def config_trend(connection: sqlite3.Connection, config: Sequence[int]) -> list[dict[str, Any]]:
    """Every measurement of a config, newest first, with what became of it.

    Added to a result's fields: `gain`, `gain_low`, `gain_high`, `noise`, `trend` (a verdict) and
    `basis` against the measurement before on the same workload, backend, GPU and scope (None for
    the first), and `changed`, which names what the machine had of another version then.
    """
    marks = " AND ".join(f"{name.strip()} = ?" for name in CONFIG.split(","))
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES}, r.measurement_id, v.facts {FROM} WHERE {marks}"
        " ORDER BY r.measured_us, r.id",
        tuple(config),
    )
    return with_trend(connection, [dict(row) for row in rows])[::-1]


def last_fate(connection: sqlite3.Connection, config: Sequence[int]) -> str | None:
    """What the newest search that met a config did with it; None where none did."""
    marks = " AND ".join(f"{name.strip()} = ?" for name in CONFIG.split(","))
    row = connection.execute(
        "SELECT f.status, f.reason FROM fc2_candidate f JOIN algo_config c ON c.id = f.config_id"
        f" WHERE {marks} ORDER BY f.id DESC LIMIT 1",
        tuple(config),
    ).fetchone()
    if row is None:
        return None
    if row["reason"] is None:
        return "it was tried and did not reach the finals"
    return str(row["reason"] if row["status"] == "folded" else f"{row['status']}, {row['reason']}")


def with_trend(
    connection: sqlite3.Connection, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Results in order of time, each compared with the one before it in its series."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    found = []
    for row in rows:
        row["facts"] = json.loads(row["facts"])
        before = last.get(series_of(row))
        found.append({**row, **_against(connection, before, row)})
        last[series_of(row)] = row
    for row in found:
        del row["facts"], row["measurement_id"]
    return found


def series_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What must be one for two measurements to lie on one line."""
    return row["workload"], row["config"], row["backend"], row["gpu"], row["scope"]


def _against(
    connection: sqlite3.Connection, before: dict[str, Any] | None, row: dict[str, Any]
) -> dict[str, Any]:
    shift = None if before is None else _shift(connection, before, row)
    fields = shift_fields(shift)
    trend = fields.pop("verdict")
    changed = None if before is None else changes(before["facts"], row["facts"])
    return {**fields, "trend": trend, "changed": changed}


def _shift(
    connection: sqlite3.Connection, before: dict[str, Any], row: dict[str, Any]
) -> Shift | None:
    sessions = (
        timed_session(connection, {**one, "id": one["measurement_id"]}) for one in (before, row)
    )
    return compare_sessions(*sessions)


def changes(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """`driver 575.1 → 580.2`: which facts differ; None where none does."""
    names = [n for n in {**before, **after} if before.get(n) != after.get(n)]
    return ", ".join(f"{n} {before.get(n)} → {after.get(n)}" for n in names) or None
