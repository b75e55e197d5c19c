"""Writing prepared rows: many at once, inside the caller's one transaction, nothing twice.

`kclab.db.rows` inserts one row set at a time and asks for each key; an import of thousands asks
once per table and inserts with executemany. Ids are given out here: within BEGIN IMMEDIATE nobody
else inserts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kclab.core.definition import Definition
from kclab.core.families import family_of
from kclab.core.times import now_us
from kclab.dataset.options import ImportSummary
from kclab.dataset.prepared import Prepared, PreparedCapture, PreparedVerdict, PreparedWorkload
from kclab.db.rows import add_blobs, add_definition
from kclab.db.values import to_json
from kclab.db.verdicts import OutputVerdict

Ids = dict[str, int]


def insert(
    connection: sqlite3.Connection,
    run_id: int,
    prepared: Prepared,
    origin: str,
    summary: ImportSummary,
) -> None:
    """Write everything of `prepared`; counts what was new into `summary`."""
    at = now_us()
    add_blobs(connection, prepared.blobs.values(), verified_us=at)
    definitions = _definitions(connection, prepared.workloads.values(), origin, summary)
    _drop_stand_ins(connection, prepared.workloads.values())
    workloads = _workloads(connection, prepared, definitions, at, summary)
    _captures(connection, run_id, prepared.captures, workloads, at, summary)
    verdicts = [c.verdict for c in prepared.captures.values() if c.verdict is not None]
    _verdicts(connection, run_id, verdicts, summary)


def _definitions(
    connection: sqlite3.Connection,
    workloads: Iterable[PreparedWorkload],
    origin: str,
    summary: ImportSummary,
) -> Ids:
    used = {w.definition.sha256: w.definition for w in workloads}
    before = connection.total_changes
    ids = {sha256: _definition(connection, d, origin) for sha256, d in used.items()}
    summary.definitions += connection.total_changes - before
    return ids


def _definition(connection: sqlite3.Connection, definition: Definition, origin: str) -> int:
    family = family_of(definition.name)
    return add_definition(connection, definition.body, family=family, origin=origin)


def _existing(connection: sqlite3.Connection, table: str, uuids: Iterable[str]) -> Ids:
    rows = connection.execute(
        f"SELECT uuid, id FROM {table} WHERE uuid IN (SELECT value FROM json_each(?))",
        (json.dumps(list(uuids)),),
    )
    return {row[0]: row[1] for row in rows}


def _next_id(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()[0])


def _drop_stand_ins(connection: sqlite3.Connection, workloads: Iterable[PreparedWorkload]) -> None:
    """Rows that stood for content whose bytes have now arrived, and their absent blobs."""
    old = [(w.replaces,) for w in workloads if w.replaces]
    if not old:
        return
    connection.executemany("DELETE FROM workload WHERE uuid = ?", old)
    connection.execute(
        "DELETE FROM blob WHERE NOT present"
        " AND sha256 NOT IN (SELECT blob_sha256 FROM workload_input WHERE blob_sha256 IS NOT NULL)"
        " AND sha256 NOT IN (SELECT blob_sha256 FROM capture_output)"
    )


def _workloads(
    connection: sqlite3.Connection,
    prepared: Prepared,
    definitions: Ids,
    at: int,
    summary: ImportSummary,
) -> Ids:
    ids = _existing(connection, "workload", prepared.workloads)
    summary.known += len(prepared.bare & ids.keys())
    fresh = [w for uuid, w in prepared.workloads.items() if uuid not in ids]
    first = _next_id(connection, "workload")
    ids.update((w.uuid, first + i) for i, w in enumerate(fresh))
    connection.executemany(
        "INSERT INTO workload(id, uuid, definition_id, axes, added_us, extra) VALUES (?,?,?,?,?,?)",
        [
            (ids[w.uuid], w.uuid, definitions[w.definition.sha256], w.axes, at, w.extra)
            for w in fresh
        ],
    )
    connection.executemany(
        "INSERT INTO workload_input(workload_id, name, blob_sha256, scalar, random)"
        " VALUES (?,?,?,?,?)",
        [
            (ids[w.uuid], name, value.blob, value.scalar, value.random)
            for w in fresh
            for name, value in w.inputs.items()
        ],
    )
    summary.workloads += len(fresh)
    return ids


def _captures(
    connection: sqlite3.Connection,
    run_id: int,
    captures: Mapping[str, PreparedCapture],
    workloads: Ids,
    at: int,
    summary: ImportSummary,
) -> None:
    known = _existing(connection, "capture", captures)
    summary.known += len(known)
    fresh = [c for uuid, c in captures.items() if uuid not in known]
    requests = _requests(connection, run_id, fresh)
    first = _next_id(connection, "capture")
    ids = {c.uuid: first + i for i, c in enumerate(fresh)}
    connection.executemany(
        "INSERT INTO capture(id, uuid, run_id, workload_id, request_pk, request_id, site,"
        " operation, module_path, step, variant, process_id, rank, device, stall_us, captured_us,"
        " arrived_us, receipt) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        [_capture_values(ids[c.uuid], run_id, c, workloads, requests, at) for c in fresh],
    )
    connection.executemany(
        "INSERT INTO capture_output(capture_id, ordinal, name, blob_sha256) VALUES (?,?,?,?)",
        [
            (ids[c.uuid], ordinal, name, sha256)
            for c in fresh
            for ordinal, (name, sha256) in enumerate(c.outputs)
        ],
    )
    summary.captures += len(fresh)


def _capture_values(
    capture_id: int,
    run_id: int,
    capture: PreparedCapture,
    workloads: Ids,
    requests: Ids,
    at: int,
) -> tuple[Any, ...]:
    receipt = capture.receipt
    request_id = _text(receipt.get("request_id"))
    return (
        capture_id,
        capture.uuid,
        run_id,
        workloads[capture.workload],
        requests.get(request_id or ""),
        request_id,
        capture.site,
        str(receipt.get("operation", "")),
        _text(receipt.get("module_path")),
        _whole(receipt.get("step")),
        _text(receipt.get("variant")),
        _whole(receipt.get("process_id")),
        _whole(receipt.get("rank")),
        _text(receipt.get("device")),
        _whole(receipt.get("stall_us")),
        capture.captured_us,
        at,
        capture.receipt_text,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _requests(
    connection: sqlite3.Connection, run_id: int, captures: Sequence[PreparedCapture]
) -> Ids:
    """The ids of the requests that receipts name, under this import's run."""
    first: dict[str, PreparedCapture] = {}
    for capture in captures:
        name = _text(capture.receipt.get("request_id"))
        if name is not None:
            first.setdefault(name, capture)
    connection.executemany(
        "INSERT INTO request(run_id, request_id, payload, started_us) VALUES (?,?,?,?)"
        " ON CONFLICT(run_id, request_id) DO NOTHING",
        [
            (run_id, name, to_json(c.receipt.get("request") or {}), c.captured_us)
            for name, c in first.items()
        ],
    )
    rows = connection.execute("SELECT request_id, id FROM request WHERE run_id = ?", (run_id,))
    return {row[0]: row[1] for row in rows}


def _verdicts(
    connection: sqlite3.Connection,
    run_id: int,
    verdicts: Sequence[PreparedVerdict],
    summary: ImportSummary,
) -> None:
    """Insert replays that came with a dataset, marked as imported, once a receipt."""
    places = _unjudged(connection, [verdict.capture for verdict in verdicts])
    fresh = [verdict for verdict in verdicts if verdict.capture in places]
    first = _next_id(connection, "replay")
    connection.executemany(
        "INSERT INTO replay(id, run_id, capture_id, workload_id, subject, definition_id,"
        " definition, status, imported, device, seconds, started_us)"
        " VALUES (?,?,?,?,?,?,?,'passed',1,?,?,?)",
        [
            (first + i, run_id, *places[v.capture], v.definition, v.device, v.seconds, v.at_us)
            for i, v in enumerate(fresh)
        ],
    )
    connection.executemany(
        "INSERT INTO replay_output(replay_id, ordinal, name, dtype, passed, policy, rtol, atol,"
        " elements, mismatched, max_abs) VALUES (?,?,?,?,1,?,?,?,?,?,?)",
        [
            (first + i, ordinal, *_output_values(output))
            for i, verdict in enumerate(fresh)
            for ordinal, output in enumerate(verdict.outputs)
        ],
    )
    summary.replays += len(fresh)


def _unjudged(connection: sqlite3.Connection, captures: list[str]) -> dict[str, tuple[Any, ...]]:
    """Receipts without an imported verdict: (capture id, workload id, its uuid, definition id)."""
    rows = connection.execute(
        "SELECT c.uuid, c.id, w.id, w.uuid, w.definition_id FROM capture c"
        " JOIN workload w ON w.id = c.workload_id"
        " WHERE c.uuid IN (SELECT value FROM json_each(?))"
        " AND NOT EXISTS(SELECT 1 FROM replay r WHERE r.capture_id = c.id AND r.imported)",
        (json.dumps(captures),),
    )
    return {uuid: tuple(place) for uuid, *place in rows}


def _output_values(output: OutputVerdict) -> tuple[Any, ...]:
    finite = (
        output.max_abs if output.max_abs is not None and output.max_abs < float("inf") else None
    )
    return (
        output.name,
        output.dtype,
        output.policy,
        output.rtol,
        output.atol,
        output.elements,
        output.mismatched,
        finite,
    )
