"""Everything about one run: what it was given, where it ran, what it produced."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from kclab.db.queries.coverage import coverage, workers
from kclab.db.queries.replays import replay_failures, replay_summary
from kclab.db.runs import effective_status

PRODUCTS = {
    "captures": "SELECT count(*) FROM capture WHERE run_id = ?",
    "workloads": "SELECT count(DISTINCT workload_id) FROM capture WHERE run_id = ?",
    "requests": "SELECT count(*) FROM request WHERE run_id = ?",
    "verdicts": "SELECT count(*) FROM replay WHERE run_id = ?",
    "measurements": "SELECT count(*) FROM measurement WHERE run_id = ?",
    "results": "SELECT count(*) FROM fc2_result WHERE run_id = ?",
    "errors": "SELECT count(*) FROM error WHERE run_id = ?",
}
"""What a run may have produced, and how to count it."""


def run_details(connection: sqlite3.Connection, run: sqlite3.Row) -> dict[str, Any]:
    """The run row with its JSON decoded, `status` the effective one, and what hangs on it."""
    run_id = int(run["id"])
    fields = dict(run)
    for surrogate in ("id", "environment_id", "parent_id"):
        del fields[surrogate]
    fields |= {
        "status": effective_status(dict(run)),
        "argv": json.loads(run["argv"]),
        "params": json.loads(run["params"]),
        "volatile": None if run["volatile"] is None else json.loads(run["volatile"]),
        "parent": _uuid(connection, run["parent_id"]),
        "children": _children(connection, run_id),
        "tags": _tags(connection, run_id),
        "environment": environment_facts(connection, int(run["environment_id"])),
        "products": {
            name: int(connection.execute(sql, (run_id,)).fetchone()[0])
            for name, sql in PRODUCTS.items()
        },
        "errors": run_errors(connection, run_id),
        "coverage": coverage(connection, run_id),
        "workers": workers(connection, run_id),
        "replays": replay_summary(connection, run_id),
        "failures": replay_failures(connection, run_id),
        "measurements": measurements(connection, run_id),
    }
    return fields


def environment_facts(connection: sqlite3.Connection, environment_id: int) -> dict[str, Any]:
    """The stable facts of an environment, `sha256` first."""
    row = connection.execute(
        "SELECT sha256, facts FROM environment WHERE id = ?", (environment_id,)
    ).fetchone()
    return {"sha256": row["sha256"], **json.loads(row["facts"])}


def run_errors(
    connection: sqlite3.Connection, run_id: int, limit: int = 20
) -> list[dict[str, Any]]:
    """The first errors inside a run."""
    rows = connection.execute(
        "SELECT at_us, operation, kind, message, traceback, context FROM error"
        " WHERE run_id = ? ORDER BY id LIMIT ?",
        (run_id, limit),
    )
    return [
        {**dict(row), "context": None if row["context"] is None else json.loads(row["context"])}
        for row in rows
    ]


def measurements(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """The timing comparisons of a run, by name."""
    rows = connection.execute(
        "SELECT name, baseline_ms, candidate_ms, ratio, ratio_low, ratio_high, pairs, verdict"
        " FROM measurement WHERE run_id = ? ORDER BY name, id",
        (run_id,),
    )
    return [dict(row) for row in rows]


def _uuid(connection: sqlite3.Connection, run_id: int | None) -> str | None:
    row = connection.execute("SELECT uuid FROM run WHERE id = ?", (run_id,)).fetchone()
    return None if row is None else str(row[0])


def _children(connection: sqlite3.Connection, run_id: int) -> list[str]:
    rows = connection.execute("SELECT uuid FROM run WHERE parent_id = ? ORDER BY uuid", (run_id,))
    return [row[0] for row in rows]


def _tags(connection: sqlite3.Connection, run_id: int) -> list[str]:
    rows = connection.execute("SELECT tag FROM run_tag WHERE run_id = ? ORDER BY tag", (run_id,))
    return [row[0] for row in rows]
