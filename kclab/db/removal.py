"""Removing runs: what hangs on them, counted before and deleted with them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import BadUsage, NothingMatched
from kclab.db.connection import writing
from kclab.db.runs import effective_status


@dataclass(frozen=True, slots=True)
class Removal:
    """How many rows go; `blobs` stay as files and rows until `kclab db gc`."""

    runs: int
    captures: int
    workloads: int
    """Those that no capture of another run, and nothing else, needs."""
    verdicts: int
    """The runs' own."""
    foreign_verdicts: int
    """Other runs' verdicts on what goes."""
    measurements: int
    results: int
    """Measured algorithm configs."""
    blobs: int
    """Blobs that nothing refers to any more."""
    nbytes: int
    """Bytes of their elements."""


class _RolledBackError(Exception):
    """Ends a rehearsal."""


def removable_runs(
    connection: sqlite3.Connection, named: Sequence[sqlite3.Row], before_us: int | None
) -> list[int]:
    """Ids of the runs that are named, or that started before a time.

    Raises BadUsage where a run is still in progress, NothingMatched where there is none.
    """
    rows: list[Any] = list(named)
    if before_us is not None:
        rows += connection.execute("SELECT * FROM run WHERE started_us < ?", (before_us,))
    alive = [row["uuid"] for row in rows if effective_status(row) == "running"]
    if alive:
        raise BadUsage(f"run {alive[0]} is still in progress; nothing was removed.")
    if not rows:
        raise NothingMatched("no run started before then.")
    return sorted({int(row["id"]) for row in rows})


def plan_removal(connection: sqlite3.Connection, run_ids: Sequence[int]) -> Removal:
    """What `remove_runs` would remove; a rehearsal that is rolled back."""
    removal = None
    try:
        with writing(connection):
            removal = remove_runs(connection, run_ids)
            raise _RolledBackError
    except _RolledBackError:
        pass
    assert removal is not None
    return removal


def remove_runs(connection: sqlite3.Connection, run_ids: Sequence[int]) -> Removal:
    """Delete runs (ids) with their captures, verdicts and measurements, in one transaction.

    A workload goes with its last capture unless some other table refers to it.
    """
    chosen = json.dumps(list(run_ids))
    with writing(connection):
        blobs = _blobs_of(connection, chosen)
        orphans = json.dumps(_orphans(connection, chosen))
        verdicts = _delete(connection, f"replay WHERE run_id IN {_IDS}", chosen)
        foreign = _delete(
            connection,
            f"replay WHERE capture_id IN (SELECT id FROM capture WHERE run_id IN {_IDS})"
            f" OR workload_id IN {_IDS}",
            chosen,
            orphans,
        )
        captures = _delete(connection, f"capture WHERE run_id IN {_IDS}", chosen)
        workloads = _delete(connection, f"workload WHERE id IN {_IDS}", orphans)
        results = _delete(connection, f"fc2_result WHERE run_id IN {_IDS}", chosen)
        measurements = _delete(connection, f"measurement WHERE run_id IN {_IDS}", chosen)
        connection.execute(f"UPDATE run SET parent_id = NULL WHERE parent_id IN {_IDS}", (chosen,))
        runs = _delete(connection, f"run WHERE id IN {_IDS}", chosen)
        freed, nbytes = _unreferenced(connection, blobs)
    return Removal(
        runs=runs,
        captures=captures,
        workloads=workloads,
        verdicts=verdicts,
        foreign_verdicts=foreign,
        measurements=measurements,
        results=results,
        blobs=freed,
        nbytes=nbytes,
    )


_IDS = "(SELECT value FROM json_each(?))"


def _delete(connection: sqlite3.Connection, what: str, *values: str) -> int:
    return connection.execute(f"DELETE FROM {what}", values).rowcount


def _orphans(connection: sqlite3.Connection, chosen: str) -> list[int]:
    """Workloads that only the chosen runs captured and that nothing else refers to."""
    others = "".join(
        f" AND NOT EXISTS (SELECT 1 FROM {table} t WHERE t.{column} = w.id)"
        for table, column in _references(connection, "workload")
        if table not in ("capture", "replay", "workload_input")
    )
    rows = connection.execute(
        f"SELECT w.id FROM workload w"
        f" WHERE w.id IN (SELECT workload_id FROM capture WHERE run_id IN {_IDS})"
        f" AND NOT EXISTS (SELECT 1 FROM capture c WHERE c.workload_id = w.id"
        f" AND c.run_id NOT IN {_IDS}){others}",
        (chosen, chosen),
    )
    return [int(row[0]) for row in rows]


def _blobs_of(connection: sqlite3.Connection, chosen: str) -> str:
    """JSON list of the digests that the runs' captures use."""
    rows = connection.execute(
        "SELECT blob_sha256 FROM capture_output WHERE capture_id IN"
        f" (SELECT id FROM capture WHERE run_id IN {_IDS})"
        " UNION SELECT blob_sha256 FROM workload_input WHERE blob_sha256 IS NOT NULL"
        f" AND workload_id IN (SELECT workload_id FROM capture WHERE run_id IN {_IDS})",
        (chosen, chosen),
    )
    return json.dumps([row[0] for row in rows])


def _unreferenced(connection: sqlite3.Connection, digests: str) -> tuple[int, int]:
    """(count, bytes) of those blobs that no table refers to."""
    unused = "".join(
        f" AND NOT EXISTS (SELECT 1 FROM {table} t WHERE t.{column} = b.sha256)"
        for table, column in _references(connection, "blob")
    )
    row = connection.execute(
        f"SELECT count(*), coalesce(sum(nbytes), 0) FROM blob b WHERE sha256 IN {_IDS}{unused}",
        (digests,),
    ).fetchone()
    return int(row[0]), int(row[1])


def _references(connection: sqlite3.Connection, parent: str) -> list[tuple[str, str]]:
    """(table, column) of every foreign key that points at `parent`."""
    return [
        (table, key["from"])
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for key in connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
        if key["table"] == parent
    ]
