"""What happened in an engine: requests, receipts, and what each process saw."""

from __future__ import annotations

from sqlalchemy import Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, text


class Request(SQLModel, table=True):
    """One request that an engine served while captures were taken."""

    __table_args__ = (
        UniqueConstraint("run_id", "request_id"),
        json_text("payload"),
        json_text("response"),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    request_id: str = text()
    payload: str = text()
    response: str | None = text(default=None)
    status_code: int | None = None
    started_us: int
    finished_us: int | None = None


class Capture(SQLModel, table=True):
    """One occurrence of a workload: where, when, and with which outputs (the receipt)."""

    __table_args__ = (
        json_text("receipt"),
        Index("ix_capture_run_site", "run_id", "site"),
        Index("ix_capture_workload", "workload_id", "captured_us"),
        Index("ix_capture_captured", "captured_us"),
        Index("ix_capture_arrived", "arrived_us"),
        STRICT,
    )
    id: int | None = key()
    uuid: str = text(unique=True)
    """The provenance uuid (the seed's recipe), so that old datasets stay addressable."""
    run_id: int = Field(foreign_key="run.id")
    workload_id: int = Field(foreign_key="workload.id")
    request_pk: int | None = Field(default=None, foreign_key="request.id", ondelete="SET NULL")
    request_id: str | None = text(default=None)
    site: str = text()
    """Canonical JSON of definition, module path, operation, step, variant, axes and rank."""
    operation: str = text()
    module_path: str | None = text(default=None)
    step: int | None = None
    variant: str | None = text(default=None)
    process_id: int | None = None
    rank: int | None = None
    device: str | None = text(default=None)
    stall_us: int | None = None
    """Time the engine's own thread spent in kclab for this call."""
    captured_us: int
    arrived_us: int
    receipt: str = text()
    """Everything else about the occurrence, as one JSON object."""


class CaptureOutput(SQLModel, table=True):
    """One output that the engine itself computed."""

    __tablename__ = "capture_output"
    __table_args__ = (STRICT_KEYED,)
    capture_id: int = Field(primary_key=True, foreign_key="capture.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    name: str = text()
    blob_sha256: str = text(foreign_key="blob.sha256", index=True)


class CaptureWorker(SQLModel, table=True):
    """One process that took part in a capture run: when it acknowledged and drained."""

    __tablename__ = "capture_worker"
    __table_args__ = (STRICT_KEYED,)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    process: str = text(primary_key=True)
    """`<host>:<pid>:<process start>`: unique even where pids are recycled."""
    rank: int | None = None
    engine: str | None = text(default=None)
    acknowledged_us: int
    drained_us: int | None = None
    """NULL: the process ended without draining its queue."""
    note: str | None = text(default=None)


class CaptureCount(SQLModel, table=True):
    """How many calls of a definition met one outcome in one process of a capture run."""

    __tablename__ = "capture_count"
    __table_args__ = (STRICT_KEYED,)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    process: str = text(primary_key=True)
    definition: str = text(primary_key=True)
    """A definition's name, or what was seen where no definition fits."""
    outcome: str = text(primary_key=True)
    """`seen`, `selected`, `captured`, `duplicate`, or the reason of a skip."""
    count: int
