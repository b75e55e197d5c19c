"""What capture writes into the database: entries that are rows, or a spool line, word for word."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from kclab.db.rows import (
    BlobRow,
    CaptureRow,
    InputValue,
    add_blobs,
    add_capture,
    add_definition,
    add_error,
    add_request,
    add_workload,
)


@dataclass(frozen=True, slots=True)
class CaptureEntry:
    """One capture with everything that its rows refer to."""

    body: Mapping[str, Any]
    """The definition's JSON."""
    family: str | None
    blobs: tuple[BlobRow, ...]
    workload: str
    """The workload's uuid."""
    axes: Mapping[str, int]
    """The variable axes."""
    inputs: Mapping[str, InputValue]
    capture: CaptureRow
    request: Mapping[str, Any]
    """The request's payload."""
    request_started_us: int


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A process acknowledging the plan, or confirming that its queue is empty."""

    process: str
    acknowledged_us: int
    rank: int | None = None
    engine: str | None = None
    drained_us: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class CountEntry:
    """A process's coverage so far: absolute counts, so that the last one written holds."""

    process: str
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """definition (or what was seen) -> outcome -> calls."""


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """Something that went wrong inside the recorder."""

    kind: str
    message: str
    traceback: str | None
    context: Mapping[str, Any]


Entry: TypeAlias = CaptureEntry | WorkerEntry | CountEntry | ErrorEntry
_KINDS: dict[str, type[Entry]] = {
    "capture": CaptureEntry,
    "worker": WorkerEntry,
    "count": CountEntry,
    "error": ErrorEntry,
}


def to_line(entry: Entry) -> str:
    """The entry as one JSON line, newline included."""
    what = next(name for name, cls in _KINDS.items() if isinstance(entry, cls))
    return json.dumps({"entry": what, **asdict(entry)}) + "\n"


def from_json(values: Mapping[str, Any]) -> Entry:
    """The entry of a spool line."""
    fields = dict(values)
    what = fields.pop("entry")
    if what == "capture":
        fields["blobs"] = tuple(
            BlobRow(**{**blob, "shape": tuple(blob["shape"])}) for blob in fields["blobs"]
        )
        fields["inputs"] = {k: InputValue(**v) for k, v in fields["inputs"].items()}
        outputs = [tuple(pair) for pair in fields["capture"]["outputs"]]
        fields["capture"] = CaptureRow(**{**fields["capture"], "outputs": outputs})
    return _KINDS[what](**fields)


def write_entries(connection: sqlite3.Connection, run_id: int, entries: Iterable[Entry]) -> None:
    """Write entries inside the caller's transaction; what is there already stays as it is."""
    definitions: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, CaptureEntry):
            _write_capture(connection, run_id, entry, definitions)
        elif isinstance(entry, WorkerEntry):
            _write_worker(connection, run_id, entry)
        elif isinstance(entry, CountEntry):
            _write_counts(connection, run_id, entry)
        else:
            add_error(
                connection,
                run_id,
                "capture",
                entry.kind,
                entry.message,
                traceback=entry.traceback,
                context=entry.context,
            )


def _write_capture(
    connection: sqlite3.Connection,
    run_id: int,
    entry: CaptureEntry,
    definitions: dict[int, int],
) -> None:
    body = id(entry.body)
    if body not in definitions:
        definitions[body] = add_definition(
            connection, entry.body, family=entry.family, origin="family" if entry.family else None
        )
    add_blobs(connection, entry.blobs, verified_us=entry.capture.captured_us)
    workload_id, _ = add_workload(
        connection, entry.workload, definitions[body], entry.axes, entry.inputs
    )
    request_pk = None
    if entry.capture.request_id is not None:
        request_pk = add_request(
            connection, run_id, entry.capture.request_id, entry.request, entry.request_started_us
        )
    add_capture(connection, run_id, workload_id, entry.capture, request_pk=request_pk)


def _write_worker(connection: sqlite3.Connection, run_id: int, entry: WorkerEntry) -> None:
    connection.execute(
        "INSERT INTO capture_worker(run_id, process, rank, engine, acknowledged_us, drained_us,"
        " note) VALUES (?,?,?,?,?,?,?) ON CONFLICT(run_id, process) DO UPDATE SET"
        " rank = coalesce(excluded.rank, rank), drained_us = excluded.drained_us,"
        " note = coalesce(excluded.note, note)",
        (
            run_id,
            entry.process,
            entry.rank,
            entry.engine,
            entry.acknowledged_us,
            entry.drained_us,
            entry.note,
        ),
    )


def _write_counts(connection: sqlite3.Connection, run_id: int, entry: CountEntry) -> None:
    connection.executemany(
        "INSERT INTO capture_count(run_id, process, definition, outcome, count)"
        " VALUES (?,?,?,?,?) ON CONFLICT(run_id, process, definition, outcome)"
        " DO UPDATE SET count = max(count, excluded.count)",
        [
            (run_id, entry.process, definition, outcome, count)
            for definition, outcomes in entry.counts.items()
            for outcome, count in outcomes.items()
        ],
    )
