"""Timed executions and what they amount to."""

from __future__ import annotations

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, real, text


class Measurement(SQLModel, table=True):
    """A timing comparison: its samples' summary, written with them in one transaction."""

    __table_args__ = (
        Index("ix_measurement_run_name", "run_id", "name"),
        json_text("detail"),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    name: str = text()
    """What was timed: a benchmark's name, or a GEMM candidate's scope."""
    baseline_ms: float | None = real(default=None)
    """Median of the control arm."""
    candidate_ms: float | None = real(default=None)
    """Median of the arm in question."""
    ratio: float | None = real(default=None)
    """Median over pairs of baseline / candidate; above 1 is faster."""
    ratio_low: float | None = real(default=None)
    ratio_high: float | None = real(default=None)
    """95 % confidence interval of `ratio`."""
    pairs: int = 0
    verdict: str | None = text(default=None)
    detail: str | None = text(default=None)


class TimingSample(SQLModel, table=True):
    """One timed execution."""

    __tablename__ = "timing_sample"
    __table_args__ = (STRICT_KEYED,)
    measurement_id: int = Field(primary_key=True, foreign_key="measurement.id", ondelete="CASCADE")
    round: int = Field(primary_key=True)
    position: int = Field(primary_key=True)
    arm: str = text()
    """A: the accepted baseline. B0: the heuristic's first choice. B: the candidate."""
    ms: float = real()
