"""Every definition's last verdicts, counted by status, and those verdicts one by one.

The last verdict of a capture counts; where a dataset was replayed in place there is no capture,
and the last verdict of its subject counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import NothingMatched
from kclab.db.queries.paging import Anchor, Order, Survey
from kclab.db.queries.runs import find_run

LAST = """CASE WHEN p.capture_id IS NOT NULL THEN NOT EXISTS (
        SELECT 1 FROM replay q WHERE q.capture_id = p.capture_id
            AND (q.started_us, q.id) > (p.started_us, p.id))
    ELSE NOT EXISTS (
        SELECT 1 FROM replay q WHERE q.subject = p.subject AND q.definition = p.definition
            AND q.capture_id IS NULL AND q.origin IS p.origin
            AND (q.started_us, q.id) > (p.started_us, p.id)) END"""
"""Whether `p` is the last word on what it judges."""

STATUSES = ("passed", "failed", "error", "skipped")

LISTED = """
    p.id, p.subject AS workload, p.definition, p.status, coalesce(p.reason, p.warning) AS reason,
    p.device, p.started_us, p.origin, c.module_path, c.operation, c.variant, c.step, c.rank,
    (SELECT sum(mismatched) FROM replay_output o WHERE o.replay_id = p.id) AS mismatched,
    (SELECT sum(elements) FROM replay_output o WHERE o.replay_id = p.id) AS elements,
    (SELECT max(max_abs) FROM replay_output o WHERE o.replay_id = p.id) AS max_abs,
    (SELECT group_concat(DISTINCT x.verdict) FROM oracle_output x WHERE x.replay_id = p.id)
        AS oracle
"""


def verdict_matrix(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """For each definition: how many last verdicts of each status, how many of them warned, and how
    many captures have none (`waiting`); by name.
    """
    counts: dict[str, dict[str, Any]] = {}
    for row in connection.execute(
        "SELECT definition, status, count(*), sum(warning IS NOT NULL) FROM replay p"
        f" WHERE {LAST} GROUP BY definition, status"
    ):
        line = counts.setdefault(row[0], _line(row[0]))
        line[row[1]] = row[2]
        line["warned"] += row[3]
    for row in connection.execute(
        "SELECT d.name, count(*) FROM capture c JOIN workload w ON w.id = c.workload_id"
        " JOIN definition d ON d.id = w.definition_id"
        " WHERE NOT EXISTS (SELECT 1 FROM replay p WHERE p.capture_id = c.id) GROUP BY d.name"
    ):
        counts.setdefault(row[0], _line(row[0]))["waiting"] = row[1]
    return [counts[name] for name in sorted(counts)]


def _line(definition: str) -> dict[str, Any]:
    return {"definition": definition, **dict.fromkeys((*STATUSES, "warned", "waiting"), 0)}


@dataclass(frozen=True, slots=True)
class VerdictListing:
    """Verdicts by pages, newest first: last ones alone, or all of one run."""

    definition: str | None = None
    status: str | None = None
    """One of STATUSES, or `warned`."""
    run: str | None = None

    def survey(self, connection: sqlite3.Connection, at: Anchor | None = None) -> Survey:
        """How many there are and where their pages begin."""
        return self._order(connection).survey(connection, at)

    def page(
        self, connection: sqlite3.Connection, anchor: Anchor | None
    ) -> list[Mapping[str, Any]]:
        """What a list of verdicts shows of each."""
        joins = "LEFT JOIN capture c ON c.id = p.capture_id"
        return [*self._order(connection).page(connection, LISTED, joins, anchor)]

    def _order(self, connection: sqlite3.Connection) -> Order:
        parts: list[tuple[str, Any]] = []
        if self.definition is not None:
            parts.append(("p.definition = ?", self.definition))
        if self.status == "warned":
            parts.append(("p.warning IS NOT NULL AND ?", 1))
        elif self.status is not None:
            parts.append(("p.status = ?", self.status))
        if self.run is not None:
            parts.append(("p.run_id = ?", find_run(connection, self.run)["id"]))
        else:
            parts.append((f"({LAST}) = ?", 1))
        conditions, values = zip(*parts, strict=True)
        return Order("replay p", "p.started_us", "p.id", conditions, values)


def one_verdict(connection: sqlite3.Connection, replay_id: int) -> dict[str, Any]:
    """A verdict with its outputs, the oracle's word on each, its capture, inputs and error.

    Raises NothingMatched.
    """
    row = connection.execute(
        f"SELECT {LISTED}, p.seconds, p.imported, p.warning, r.uuid AS run,"
        " c.uuid AS capture, c.request_id, k.uuid AS capture_run, w.axes, p.workload_id,"
        " e.kind AS error_kind, e.message AS error, e.traceback FROM replay p"
        " JOIN run r ON r.id = p.run_id LEFT JOIN capture c ON c.id = p.capture_id"
        " LEFT JOIN run k ON k.id = c.run_id LEFT JOIN workload w ON w.id = p.workload_id"
        " LEFT JOIN error e ON e.id = p.error_id WHERE p.id = ?",
        (replay_id,),
    ).fetchone()
    if row is None:
        raise NothingMatched(f"verdict {replay_id} is no longer there.")
    found = dict(row)
    found["axes"] = {} if row["axes"] is None else json.loads(row["axes"])
    found["outputs"] = _outputs(connection, replay_id)
    found["inputs"] = _inputs(connection, found.pop("workload_id"))
    return found


def _outputs(connection: sqlite3.Connection, replay_id: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT o.*, x.verdict AS oracle, x.engine_max_ulp, x.engine_rms_ulp, x.engine_max_abs,"
        " x.reference_max_ulp, x.reference_rms_ulp, x.reference_max_abs, x.bound_ulp,"
        " x.metrics AS oracle_metrics FROM replay_output o LEFT JOIN oracle_output x"
        " ON x.replay_id = o.replay_id AND x.ordinal = o.ordinal"
        " WHERE o.replay_id = ? ORDER BY o.ordinal",
        (replay_id,),
    )
    return [_decoded(row, "worst_index", "metrics", "oracle_metrics") for row in rows]


def _inputs(connection: sqlite3.Connection, workload_id: int | None) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT i.name, b.dtype, b.shape, b.nbytes, b.present, i.scalar FROM workload_input i"
        " LEFT JOIN blob b ON b.sha256 = i.blob_sha256 WHERE i.workload_id = ? ORDER BY i.name",
        (workload_id,),
    )
    return [_decoded(row, "shape", "scalar") for row in rows]


def _decoded(row: sqlite3.Row, *keys: str) -> dict[str, Any]:
    fields = dict(row)
    for key in keys:
        fields[key] = None if fields[key] is None else json.loads(fields[key])
    return fields
