"""Workloads: complete inputs by content, how often they were seen, and with which outputs."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from kclab.db.queries.replays import workload_verdicts
from kclab.db.queries.selection import (
    CaptureFilter,
    capture_conditions,
    definition_conditions,
    where,
)

DISTINCT_OUTPUTS = """
    (SELECT count(DISTINCT outputs) FROM (
        SELECT (SELECT json_group_array(o.name || ' ' || o.blob_sha256) FROM capture_output o
                WHERE o.capture_id = k.id) AS outputs
        FROM capture k WHERE k.workload_id = w.id))
"""
"""How many different sets of outputs the captures of workload `w` hold."""

LISTED = f"""
    w.uuid, d.name AS definition, w.axes, w.added_us,
    (SELECT coalesce(sum(b.nbytes), 0) FROM workload_input i JOIN blob b
        ON b.sha256 = i.blob_sha256 WHERE i.workload_id = w.id) AS nbytes,
    (SELECT count(*) FROM capture k WHERE k.workload_id = w.id) AS captures,
    {DISTINCT_OUTPUTS} AS outputs,
    (SELECT max(k.captured_us) FROM capture k WHERE k.workload_id = w.id) AS captured_us,
    (SELECT p.status FROM replay p WHERE p.workload_id = w.id
        ORDER BY p.started_us DESC, p.id DESC LIMIT 1) AS verdict
"""


def list_workloads(
    connection: sqlite3.Connection, wanted: CaptureFilter, *, differing: bool = False
) -> list[dict[str, Any]]:
    """Workloads, the last added first.

    `captures` counts occurrences and `outputs` the different sets of outputs among them: more
    than one is a finding. `verdict` is the newest one. `differing` keeps only findings.
    """
    conditions, values = _conditions(wanted)
    if differing:
        conditions.append(f"{DISTINCT_OUTPUTS} > 1")
    rows = connection.execute(
        f"SELECT {LISTED} FROM workload w JOIN definition d ON d.id = w.definition_id"
        f" {where(conditions)} ORDER BY w.id DESC LIMIT ?",
        (*values, -1 if wanted.limit is None else wanted.limit),
    )
    return [{**dict(row), "axes": json.loads(row["axes"])} for row in rows]


def count_workloads(connection: sqlite3.Connection, wanted: CaptureFilter) -> int:
    """How many workloads the filter finds, its limit aside."""
    conditions, values = _conditions(wanted)
    row = connection.execute(
        "SELECT count(*) FROM workload w JOIN definition d ON d.id = w.definition_id"
        f" {where(conditions)}",
        values,
    ).fetchone()
    return int(row[0])


def _conditions(wanted: CaptureFilter) -> tuple[list[str], list[Any]]:
    conditions, values = definition_conditions(wanted)
    if wanted.on_captures:
        inner, more = capture_conditions(wanted)
        conditions.append(f"w.id IN (SELECT c.workload_id FROM capture c {where(inner)})")
        values += more
    return conditions, values


def workload_details(connection: sqlite3.Connection, workload: sqlite3.Row) -> dict[str, Any]:
    """One workload: its inputs, its captures, their different outputs, and all verdicts.

    `outputs` has one entry for each different set of outputs, the most frequent first, with the
    captures that gave it.
    """
    workload_id = int(workload["id"])
    definition = connection.execute(
        "SELECT name, op_type, family, sha256 FROM definition WHERE id = ?",
        (workload["definition_id"],),
    ).fetchone()
    captures = _captures(connection, workload_id)
    return {
        "uuid": workload["uuid"],
        "definition": definition["name"],
        "definition_sha256": definition["sha256"],
        "op_type": definition["op_type"],
        "family": definition["family"],
        "axes": json.loads(workload["axes"]),
        "added_us": workload["added_us"],
        "extra": None if workload["extra"] is None else json.loads(workload["extra"]),
        "inputs": _inputs(connection, workload_id),
        "outputs": _output_sets(connection, captures),
        "captures": captures,
        "verdicts": workload_verdicts(connection, workload_id),
    }


def _inputs(connection: sqlite3.Connection, workload_id: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT i.name, i.blob_sha256 AS sha256, b.dtype, b.shape, b.nbytes, b.present, b.hint,"
        " i.scalar, i.random FROM workload_input i LEFT JOIN blob b ON b.sha256 = i.blob_sha256"
        " WHERE i.workload_id = ? ORDER BY i.name",
        (workload_id,),
    )
    return [
        {
            **dict(row),
            "shape": None if row["shape"] is None else json.loads(row["shape"]),
            "scalar": None if row["scalar"] is None else json.loads(row["scalar"]),
            "random": None if row["random"] is None else json.loads(row["random"]),
        }
        for row in rows
    ]


def _captures(connection: sqlite3.Connection, workload_id: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT c.uuid, r.uuid AS run, c.captured_us, c.module_path, c.operation, c.step,"
        " c.variant, c.rank, c.request_id,"
        " (SELECT json_group_object(name, blob_sha256) FROM"
        "  (SELECT name, blob_sha256 FROM capture_output WHERE capture_id = c.id ORDER BY ordinal)"
        " ) AS outputs"
        " FROM capture c JOIN run r ON r.id = c.run_id WHERE c.workload_id = ?"
        " ORDER BY c.captured_us, c.id",
        (workload_id,),
    )
    return [{**dict(row), "outputs": json.loads(row["outputs"])} for row in rows]


def _output_sets(
    connection: sqlite3.Connection, captures: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for capture in captures:
        if capture["outputs"]:
            groups.setdefault(json.dumps(capture["outputs"]), []).append(capture)
    return [
        {
            "captures": [capture["uuid"] for capture in group],
            "tensors": [
                {"name": name, "sha256": sha256, **_blob(connection, sha256)}
                for name, sha256 in group[0]["outputs"].items()
            ],
        }
        for group in sorted(groups.values(), key=len, reverse=True)
    ]


def _blob(connection: sqlite3.Connection, sha256: str) -> dict[str, Any]:
    row = connection.execute(
        "SELECT dtype, shape, nbytes, present, hint FROM blob WHERE sha256 = ?", (sha256,)
    ).fetchone()
    return {**dict(row), "shape": json.loads(row["shape"])}
