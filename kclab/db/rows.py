"""Writing the content rows with plain sqlite3: definitions, blobs, workloads, captures, replays.

Used by the recorder inside engines, by import and by replay. Every function runs inside a
`writing` block of its caller and inserts a row only where its stable key is new, so merging the
same thing twice adds nothing. Each returns what the caller needs next, usually the row's id.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.times import now_us


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob as the database knows it."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    present: bool = True
    hint: str | None = None
    """How to fetch the bytes when they are absent."""


@dataclass(frozen=True, slots=True)
class InputValue:
    """Where one input's value is: exactly one of the three is set."""

    blob: str | None = None
    scalar: str | None = None
    """JSON text of an int, float or bool."""
    random: str | None = None
    """JSON text of a foreign descriptor without content."""


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """A receipt: one occurrence of a workload."""

    uuid: str
    operation: str
    site: str
    captured_us: int
    receipt: Mapping[str, Any]
    outputs: Sequence[tuple[str, str]]
    """(name, blob sha256), in the definition's order."""
    request_id: str | None = None
    module_path: str | None = None
    step: int | None = None
    variant: str | None = None
    process_id: int | None = None
    rank: int | None = None
    device: str | None = None
    stall_us: int | None = None


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """How one output compares; field for field a `replay_output` row."""

    name: str
    dtype: str
    passed: bool
    policy: str
    elements: int
    mismatched: int
    rtol: float | None = None
    atol: float | None = None
    max_abs: float | None = None
    rms: float | None = None
    relative_rms: float | None = None
    worst_index: Sequence[int] | None = None
    worst_engine: str | None = None
    worst_reference: str | None = None
    reason: str | None = None
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OracleVerdict:
    """Distances to the float64 truth for one output; an `oracle_output` row."""

    verdict: str
    engine_max_ulp: float | None = None
    engine_rms_ulp: float | None = None
    engine_max_abs: float | None = None
    reference_max_ulp: float | None = None
    reference_rms_ulp: float | None = None
    reference_max_abs: float | None = None
    bound_ulp: float | None = None
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One verdict with its outputs."""

    subject: str
    """The workload's uuid."""
    definition: str
    """The definition's name."""
    status: str
    started_us: int
    workload_id: int | None = None
    definition_id: int | None = None
    capture_id: int | None = None
    origin: str | None = None
    """`file:line` of a root that is replayed in place."""
    reason: str | None = None
    warning: str | None = None
    imported: bool = False
    device: str | None = None
    seconds: float | None = None
    traceback: str | None = None
    """Kept as an `error` row when there is one."""
    outputs: Sequence[OutputVerdict] = ()
    oracle: Sequence[OracleVerdict] = field(default=())


def add_definition(
    connection: sqlite3.Connection,
    body: Mapping[str, Any],
    *,
    family: str | None = None,
    origin: str | None = None,
) -> int:
    """The id of the definition with exactly this body; a changed body is a new version."""
    text = canonical_json(body)
    sha256 = text_sha256(text)
    found = connection.execute(
        "SELECT id FROM definition WHERE name = ? AND sha256 = ?", (body["name"], sha256)
    ).fetchone()
    if found is not None:
        return int(found[0])
    cursor = connection.execute(
        "INSERT INTO definition(name, sha256, op_type, family, reference_sha256, body, origin,"
        " added_us) VALUES (?,?,?,?,?,?,?,?)",
        (
            body["name"],
            sha256,
            body["op_type"],
            family,
            text_sha256(body["reference"]),
            to_json(body),
            origin,
            now_us(),
        ),
    )
    return int(cursor.lastrowid or 0)


def add_blobs(
    connection: sqlite3.Connection, blobs: Iterable[BlobRow], *, verified_us: int | None = None
) -> int:
    """Insert blobs that are not known yet; bytes that arrive make an absent one present.

    Returns how many rows are new.
    """
    at = now_us()
    before = connection.total_changes
    rows = [
        (b.sha256, b.dtype, json.dumps(list(b.shape)), b.nbytes, int(b.present), b.hint, at,
         verified_us if b.present else None)
        for b in blobs
    ]  # fmt: skip
    connection.executemany(
        "INSERT INTO blob(sha256, dtype, shape, nbytes, present, hint, added_us, verified_us)"
        " VALUES (?,?,?,?,?,?,?,?) ON CONFLICT(sha256) DO NOTHING",
        rows,
    )
    added = connection.total_changes - before
    connection.executemany(
        "UPDATE blob SET present = 1, hint = NULL, verified_us = ?"
        " WHERE sha256 = ? AND present = 0",
        [(row[7], row[0]) for row in rows if row[4]],
    )
    return added


def add_workload(
    connection: sqlite3.Connection,
    uuid: str,
    definition_id: int,
    axes: Mapping[str, int],
    inputs: Mapping[str, InputValue],
    *,
    extra: Mapping[str, Any] | None = None,
) -> tuple[int, bool]:
    """(id, whether it is new) of the workload `uuid`, with its inputs."""
    found = connection.execute("SELECT id FROM workload WHERE uuid = ?", (uuid,)).fetchone()
    if found is not None:
        return int(found[0]), False
    cursor = connection.execute(
        "INSERT INTO workload(uuid, definition_id, axes, added_us, extra) VALUES (?,?,?,?,?)",
        (
            uuid,
            definition_id,
            to_json(dict(axes)),
            now_us(),
            None if extra is None else to_json(extra),
        ),
    )
    workload_id = int(cursor.lastrowid or 0)
    connection.executemany(
        "INSERT INTO workload_input(workload_id, name, blob_sha256, scalar, random)"
        " VALUES (?,?,?,?,?)",
        [(workload_id, name, v.blob, v.scalar, v.random) for name, v in inputs.items()],
    )
    return workload_id, True


def add_request(
    connection: sqlite3.Connection,
    run_id: int,
    request_id: str,
    payload: Mapping[str, Any],
    started_us: int,
) -> int:
    """The id of a run's request, inserted when it is new."""
    connection.execute(
        "INSERT INTO request(run_id, request_id, payload, started_us) VALUES (?,?,?,?)"
        " ON CONFLICT(run_id, request_id) DO NOTHING",
        (run_id, request_id, to_json(payload), started_us),
    )
    row = connection.execute(
        "SELECT id FROM request WHERE run_id = ? AND request_id = ?", (run_id, request_id)
    ).fetchone()
    return int(row[0])


def add_capture(
    connection: sqlite3.Connection,
    run_id: int,
    workload_id: int,
    capture: CaptureRow,
    *,
    request_pk: int | None = None,
) -> tuple[int, bool]:
    """(id, whether it is new) of the receipt `capture.uuid`, with its outputs."""
    found = connection.execute("SELECT id FROM capture WHERE uuid = ?", (capture.uuid,)).fetchone()
    if found is not None:
        return int(found[0]), False
    cursor = connection.execute(
        "INSERT INTO capture(uuid, run_id, workload_id, request_pk, request_id, site, operation,"
        " module_path, step, variant, process_id, rank, device, stall_us, captured_us, arrived_us,"
        " receipt) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            capture.uuid,
            run_id,
            workload_id,
            request_pk,
            capture.request_id,
            capture.site,
            capture.operation,
            capture.module_path,
            capture.step,
            capture.variant,
            capture.process_id,
            capture.rank,
            capture.device,
            capture.stall_us,
            capture.captured_us,
            now_us(),
            to_json(capture.receipt),
        ),
    )
    capture_id = int(cursor.lastrowid or 0)
    connection.executemany(
        "INSERT INTO capture_output(capture_id, ordinal, name, blob_sha256) VALUES (?,?,?,?)",
        [(capture_id, i, name, sha) for i, (name, sha) in enumerate(capture.outputs)],
    )
    return capture_id, True


def add_error(
    connection: sqlite3.Connection,
    run_id: int,
    operation: str,
    kind: str,
    message: str,
    *,
    traceback: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> int:
    """Insert an error row and return its id."""
    cursor = connection.execute(
        "INSERT INTO error(run_id, at_us, operation, kind, message, traceback, context)"
        " VALUES (?,?,?,?,?,?,?)",
        (
            run_id,
            now_us(),
            operation,
            kind,
            message,
            traceback,
            None if context is None else to_json(context),
        ),
    )
    return int(cursor.lastrowid or 0)


def add_replay(connection: sqlite3.Connection, run_id: int, replay: ReplayRow) -> int:
    """Insert one verdict with its outputs and oracle rows; returns its id."""
    error_id = None
    if replay.status == "error" or replay.traceback:
        error_id = add_error(
            connection,
            run_id,
            "replay",
            replay.status,
            replay.reason or "",
            traceback=replay.traceback,
        )
    cursor = connection.execute(
        "INSERT INTO replay(run_id, subject, definition, origin, capture_id, workload_id,"
        " definition_id, status, reason, warning, imported, device, seconds, started_us, error_id)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            run_id,
            replay.subject,
            replay.definition,
            replay.origin,
            replay.capture_id,
            replay.workload_id,
            replay.definition_id,
            replay.status,
            replay.reason,
            replay.warning,
            int(replay.imported),
            replay.device,
            replay.seconds,
            replay.started_us,
            error_id,
        ),
    )
    replay_id = int(cursor.lastrowid or 0)
    connection.executemany(
        "INSERT INTO replay_output(replay_id, ordinal, name, dtype, passed, policy, rtol, atol,"
        " elements, mismatched, max_abs, rms, relative_rms, worst_index, worst_engine,"
        " worst_reference, reason, metrics) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        [_output_values(replay_id, i, o) for i, o in enumerate(replay.outputs)],
    )
    connection.executemany(
        "INSERT INTO oracle_output(replay_id, ordinal, verdict, engine_max_ulp, engine_rms_ulp,"
        " engine_max_abs, reference_max_ulp, reference_rms_ulp, reference_max_abs, bound_ulp,"
        " metrics) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        [_oracle_values(replay_id, i, o) for i, o in enumerate(replay.oracle)],
    )
    return replay_id


def to_json(value: Any) -> str:
    """JSON text of a row's structured column; NaN and infinity become the words `nan`, `inf`.

    SQLite's JSON functions know no such numbers, and a receipt may hold one.
    """
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_spelled(value), default=_plain)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value


def _json_or_null(value: Any) -> str | None:
    return None if value is None else to_json(value)


def _finite(value: float | None) -> float | None:
    """NULL for NaN and infinity: as numbers they would sort first."""
    return float(value) if value is not None and math.isfinite(value) else None


def _output_values(replay_id: int, ordinal: int, output: OutputVerdict) -> tuple[Any, ...]:
    return (
        replay_id,
        ordinal,
        output.name,
        output.dtype,
        int(output.passed),
        output.policy,
        output.rtol,
        output.atol,
        output.elements,
        output.mismatched,
        _finite(output.max_abs),
        _finite(output.rms),
        _finite(output.relative_rms),
        _json_or_null(None if output.worst_index is None else list(output.worst_index)),
        output.worst_engine,
        output.worst_reference,
        output.reason,
        _json_or_null(output.metrics),
    )


def _oracle_values(replay_id: int, ordinal: int, oracle: OracleVerdict) -> tuple[Any, ...]:
    return (
        replay_id,
        ordinal,
        oracle.verdict,
        _finite(oracle.engine_max_ulp),
        _finite(oracle.engine_rms_ulp),
        _finite(oracle.engine_max_abs),
        _finite(oracle.reference_max_ulp),
        _finite(oracle.reference_rms_ulp),
        _finite(oracle.reference_max_abs),
        _finite(oracle.bound_ulp),
        _json_or_null(oracle.metrics),
    )
