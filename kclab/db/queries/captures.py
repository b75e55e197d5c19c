"""Captures: single occurrences of workloads, with their receipts."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from kclab.db.queries.selection import (
    CaptureFilter,
    capture_conditions,
    definition_conditions,
    where,
)

FROM = """
    FROM capture c JOIN workload w ON w.id = c.workload_id
    JOIN definition d ON d.id = w.definition_id JOIN run r ON r.id = c.run_id
"""

LISTED = """
    c.uuid, w.uuid AS workload, d.name AS definition, r.uuid AS run, c.module_path, c.operation,
    c.step, c.variant, c.rank, c.request_id, c.device, w.axes, c.stall_us, c.captured_us,
    c.arrived_us,
    (SELECT p.status FROM replay p WHERE p.capture_id = c.id
        ORDER BY p.started_us DESC, p.id DESC LIMIT 1) AS verdict
"""


def list_captures(connection: sqlite3.Connection, wanted: CaptureFilter) -> list[dict[str, Any]]:
    """Captures, the newest first (by the time that the filter names); `verdict` is the newest."""
    conditions, values = _conditions(wanted)
    rows = connection.execute(
        f"SELECT {LISTED} {FROM} {where(conditions)}"
        f" ORDER BY c.{wanted.by.value}_us DESC, c.id DESC LIMIT ?",
        (*values, -1 if wanted.limit is None else wanted.limit),
    )
    return [{**dict(row), "axes": json.loads(row["axes"])} for row in rows]


def count_captures(connection: sqlite3.Connection, wanted: CaptureFilter) -> int:
    """How many captures the filter finds, its limit aside."""
    conditions, values = _conditions(wanted)
    return int(
        connection.execute(f"SELECT count(*) {FROM} {where(conditions)}", values).fetchone()[0]
    )


def _conditions(wanted: CaptureFilter) -> tuple[list[str], list[Any]]:
    conditions, values = definition_conditions(wanted)
    inner, more = capture_conditions(wanted)
    return conditions + inner, values + more


def capture_details(connection: sqlite3.Connection, capture: sqlite3.Row) -> dict[str, Any]:
    """One capture: where and when, its outputs, its request, its receipt."""
    row = connection.execute(f"SELECT {LISTED} {FROM} WHERE c.id = ?", (capture["id"],)).fetchone()
    outputs = connection.execute(
        "SELECT o.name, o.blob_sha256 AS sha256, b.dtype, b.shape, b.nbytes, b.present, b.hint"
        " FROM capture_output o JOIN blob b ON b.sha256 = o.blob_sha256"
        " WHERE o.capture_id = ? ORDER BY o.ordinal",
        (capture["id"],),
    )
    return {
        **dict(row),
        "axes": json.loads(row["axes"]),
        "site": json.loads(capture["site"]),
        "process_id": capture["process_id"],
        "outputs": [{**dict(o), "shape": json.loads(o["shape"])} for o in outputs],
        "request": _request(connection, capture["request_pk"]),
        "receipt": json.loads(capture["receipt"]),
    }


def _request(connection: sqlite3.Connection, request_pk: int | None) -> dict[str, Any] | None:
    row = connection.execute(
        "SELECT request_id, payload, status_code, started_us, finished_us FROM request"
        " WHERE id = ?",
        (request_pk,),
    ).fetchone()
    return None if row is None else {**dict(row), "payload": json.loads(row["payload"])}
