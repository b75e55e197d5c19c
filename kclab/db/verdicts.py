"""Verdicts on captures, and writing them with plain sqlite3; see `kclab.db.rows`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kclab.db.rows import add_error
from kclab.db.values import finite, insert, to_json


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


def add_replay(connection: sqlite3.Connection, run_id: int, replay: ReplayRow) -> int:
    """Insert one verdict with its outputs and oracle rows; returns its id."""
    row = {
        **_columns(replay, leave_out=("traceback", "outputs", "oracle")),
        "run_id": run_id,
        "error_id": _error(connection, run_id, replay),
    }
    replay_id = insert(connection, "replay", row)
    for ordinal, output in enumerate(replay.outputs):
        owner = {"replay_id": replay_id, "ordinal": ordinal}
        insert(connection, "replay_output", {**owner, **_columns(output)})
    for ordinal, oracle in enumerate(replay.oracle):
        owner = {"replay_id": replay_id, "ordinal": ordinal}
        insert(connection, "oracle_output", {**owner, **_columns(oracle)})
    return replay_id


def _error(connection: sqlite3.Connection, run_id: int, replay: ReplayRow) -> int | None:
    if replay.status != "error" and not replay.traceback:
        return None
    return add_error(
        connection,
        run_id,
        "replay",
        replay.status,
        replay.reason or "",
        traceback=replay.traceback,
    )


def _columns(
    record: OutputVerdict | OracleVerdict | ReplayRow, leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """A record's fields as columns of the same names."""
    return {
        field.name: _column(getattr(record, field.name))
        for field in fields(record)
        if field.name not in leave_out
    }


def _column(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return finite(value)
    if value is None or isinstance(value, int | str):
        return value
    return to_json(list(value) if isinstance(value, Sequence) else value)
