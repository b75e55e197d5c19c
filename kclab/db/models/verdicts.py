"""How references and engines compare."""

from __future__ import annotations

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, one_of, real, text

REPLAY_STATUSES = ("passed", "failed", "error", "skipped")
"""`failed`: outputs differ. `error`: no outputs to compare. `skipped`: nothing to compare with."""


class Replay(SQLModel, table=True):
    """One verdict on one capture."""

    __table_args__ = (
        one_of("status", REPLAY_STATUSES),
        Index("ix_replay_run", "run_id", "status"),
        Index("ix_replay_subject", "subject", "started_us"),
        Index("ix_replay_started", "started_us"),
        Index("ix_replay_capture", "capture_id", "started_us", "status"),
        Index("ix_replay_definition", "definition_id", "started_us"),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    subject: str = text()
    """The workload's uuid, as the store or the replayed root names it."""
    definition: str = text()
    """The definition's name, also where its body is unknown."""
    capture_id: int | None = Field(default=None, foreign_key="capture.id", ondelete="CASCADE")
    """NULL: no engine output, or a root that was replayed in place and never imported."""
    workload_id: int | None = Field(
        default=None, foreign_key="workload.id", ondelete="CASCADE", index=True
    )
    definition_id: int | None = Field(default=None, foreign_key="definition.id")
    """The version that ran; NULL where there was none to run."""
    origin: str | None = text(default=None)
    """`file:line` of a root that was replayed in place."""
    status: str = text()
    reason: str | None = text(default=None)
    """Why it did not simply pass, in one sentence."""
    warning: str | None = text(default=None)
    """Why a pass proves little: no elements, or the truth lies below atol."""
    imported: int = 0
    """1: a verdict that came with a dataset and was not reached here."""
    device: str | None = text(default=None)
    seconds: float | None = real(default=None)
    started_us: int
    error_id: int | None = Field(default=None, foreign_key="error.id", ondelete="SET NULL")


class ReplayOutput(SQLModel, table=True):
    """How one output of the reference compares with the engine's."""

    __tablename__ = "replay_output"
    __table_args__ = (json_text("worst_index"), json_text("metrics"), STRICT_KEYED)
    replay_id: int = Field(primary_key=True, foreign_key="replay.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    name: str = text()
    dtype: str = text()
    passed: int
    policy: str = text()
    """`allclose`, `exact`, `bytes`, or a named metric policy."""
    rtol: float | None = real(default=None)
    atol: float | None = real(default=None)
    elements: int
    mismatched: int
    max_abs: float | None = real(default=None)
    rms: float | None = real(default=None)
    relative_rms: float | None = real(default=None)
    """RMS error over the larger RMS of the two sides: 1 where one of them is all zeros."""
    worst_index: str | None = text(default=None)
    """JSON list: the element with the largest error, or the first non-finite one."""
    worst_engine: str | None = text(default=None)
    worst_reference: str | None = text(default=None)
    """Text, since they may be nan or inf."""
    reason: str | None = text(default=None)
    metrics: str | None = text(default=None)


class OracleOutput(SQLModel, table=True):
    """Distances of engine and reference to the float64 truth, for one output."""

    __tablename__ = "oracle_output"
    __table_args__ = (json_text("metrics"), STRICT_KEYED)
    replay_id: int = Field(primary_key=True, foreign_key="replay.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    verdict: str = text()
    """`engine`, `reference`, `both`, `neither` (is off), or `undecided`."""
    engine_max_ulp: float | None = real(default=None)
    engine_rms_ulp: float | None = real(default=None)
    engine_max_abs: float | None = real(default=None)
    reference_max_ulp: float | None = real(default=None)
    reference_rms_ulp: float | None = real(default=None)
    reference_max_abs: float | None = real(default=None)
    bound_ulp: float | None = real(default=None)
    """What rounding alone may do, in ulp of the output dtype."""
    metrics: str | None = text(default=None)
