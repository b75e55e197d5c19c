"""Verdicts: sums over a run, the failures worth reading, and the last word on a workload."""

from __future__ import annotations

import json
import sqlite3
from typing import Any


def replay_summary(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """For each definition that a run replayed, how many verdicts of each status."""
    rows = connection.execute(
        "SELECT definition, count(*) AS replayed, sum(status = 'passed') AS passed,"
        " sum(status = 'failed') AS failed, sum(status = 'error') AS error,"
        " sum(status = 'skipped') AS skipped, sum(warning IS NOT NULL) AS warned"
        " FROM replay WHERE run_id = ? GROUP BY definition ORDER BY definition",
        (run_id,),
    )
    return [dict(row) for row in rows]


def replay_failures(
    connection: sqlite3.Connection, run_id: int, limit: int = 10
) -> list[dict[str, Any]]:
    """The first verdicts of a run that did not pass, in the order they fell."""
    rows = connection.execute(
        "SELECT subject AS workload, definition, status, reason FROM replay"
        " WHERE run_id = ? AND status IN ('failed', 'error') ORDER BY id LIMIT ?",
        (run_id, limit),
    )
    return [dict(row) for row in rows]


def workload_verdicts(connection: sqlite3.Connection, workload_id: int) -> list[dict[str, Any]]:
    """Every verdict on a workload, newest first, with its run and the capture it judged."""
    rows = connection.execute(
        "SELECT p.status, p.started_us, r.uuid AS run, c.uuid AS capture, p.device, p.imported,"
        " coalesce(p.reason, p.warning) AS reason,"
        " (SELECT sum(mismatched) FROM replay_output o WHERE o.replay_id = p.id) AS mismatched,"
        " (SELECT max(max_abs) FROM replay_output o WHERE o.replay_id = p.id) AS max_abs"
        " FROM replay p JOIN run r ON r.id = p.run_id"
        " LEFT JOIN capture c ON c.id = p.capture_id"
        " WHERE p.workload_id = ? ORDER BY p.started_us DESC, p.id DESC",
        (workload_id,),
    )
    return [dict(row) for row in rows]


def replay_verdicts(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """Every verdict of a run, one row an output (one with empty fields where there is none)."""
    rows = connection.execute(
        "SELECT p.subject AS workload, c.uuid AS capture, p.definition, p.status, p.reason,"
        " p.warning, p.origin, p.device, p.seconds, p.started_us, o.name AS output, o.passed,"
        " o.policy, o.rtol, o.atol, o.elements, o.mismatched, o.max_abs, o.rms, o.relative_rms,"
        " o.worst_index, o.worst_engine, o.worst_reference, x.verdict AS oracle,"
        " x.engine_max_ulp, x.engine_rms_ulp, x.reference_max_ulp, x.reference_rms_ulp,"
        " x.bound_ulp, o.metrics, x.metrics AS oracle_metrics"
        " FROM replay p LEFT JOIN capture c ON c.id = p.capture_id"
        " LEFT JOIN replay_output o ON o.replay_id = p.id"
        " LEFT JOIN oracle_output x ON x.replay_id = p.id AND x.ordinal = o.ordinal"
        " WHERE p.run_id = ? ORDER BY p.id, o.ordinal",
        (run_id,),
    )
    return [_parsed(row, "worst_index", "metrics", "oracle_metrics") for row in rows]


def _parsed(row: sqlite3.Row, *keys: str) -> dict[str, Any]:
    fields = dict(row)
    for key in keys:
        fields[key] = None if fields[key] is None else json.loads(fields[key])
    return fields
