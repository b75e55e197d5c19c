"""What a capture run saw: outcomes by definition, and the processes that took part."""

from __future__ import annotations

import sqlite3
from typing import Any

OWN_TIME = "kclab"
"""Not a definition: microseconds that selected steps spent in kclab are counted under it."""


def coverage(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """For each definition of a run, how many calls met each outcome, over all processes.

    `outcomes` maps an outcome to its count, the largest first.
    """
    rows = connection.execute(
        "SELECT definition, outcome, sum(count) AS total FROM capture_count"
        " WHERE run_id = ? AND definition != ?"
        " GROUP BY definition, outcome ORDER BY definition, total DESC, outcome",
        (run_id, OWN_TIME),
    )
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["definition"], {})[row["outcome"]] = row["total"]
    return [{"definition": name, "outcomes": outcomes} for name, outcomes in found.items()]


def workers(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """The processes of a capture run, in order of rank and acknowledgement."""
    rows = connection.execute(
        "SELECT process, rank, engine, acknowledged_us, drained_us, note FROM capture_worker"
        " WHERE run_id = ? ORDER BY rank IS NULL, rank, acknowledged_us",
        (run_id,),
    )
    return [dict(row) for row in rows]
