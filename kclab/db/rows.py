"""Writing the content rows with plain sqlite3: definitions, blobs, workloads, captures.

Used by the recorder inside engines, by import and by replay. Every function runs inside a
`writing` block of its caller and inserts a row only where its stable key is new, so merging the
same thing twice adds nothing. Each returns what the caller needs next, usually the row's id.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.times import now_us
from kclab.db.values import insert, to_json


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
    row = {
        "name": body["name"],
        "sha256": sha256,
        "op_type": body["op_type"],
        "family": family,
        "reference_sha256": text_sha256(body["reference"]),
        "body": to_json(body),
        "origin": origin,
        "added_us": now_us(),
    }
    return insert(connection, "definition", row)


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
    if added == len(rows):
        return added
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
    row = {
        "uuid": uuid,
        "definition_id": definition_id,
        "axes": to_json(dict(axes)),
        "added_us": now_us(),
        "extra": None if extra is None else to_json(extra),
    }
    workload_id = insert(connection, "workload", row)
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
    own = {f.name: getattr(capture, f.name) for f in fields(capture) if f.name != "outputs"}
    row = {
        **own,
        "receipt": to_json(capture.receipt),
        "run_id": run_id,
        "workload_id": workload_id,
        "request_pk": request_pk,
        "arrived_us": now_us(),
    }
    capture_id = insert(connection, "capture", row)
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
    row = {
        "run_id": run_id,
        "at_us": now_us(),
        "operation": operation,
        "kind": kind,
        "message": message,
        "traceback": traceback,
        "context": None if context is None else to_json(context),
    }
    return insert(connection, "error", row)
