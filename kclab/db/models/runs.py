"""Invocations: where they ran, how they ended, what went wrong."""

from __future__ import annotations

from sqlalchemy import Index
from sqlalchemy import text as condition
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, one_of, text

RUN_STATUSES = ("running", "passed", "failed", "empty", "error", "interrupted", "stale")
"""`empty`: nothing matched or was measured. `stale`: its process is gone and never said the end."""


class Environment(SQLModel, table=True):
    """The stable facts of a machine and its software; what comparisons stay within."""

    __table_args__ = (json_text("facts"), STRICT)
    id: int | None = key()
    sha256: str = text(unique=True)
    """sha256 of `facts`, which is canonical JSON."""
    os: str = text()
    python: str = text()
    torch: str | None = text(default=None)
    gpu: str | None = text(default=None)
    capability: str | None = text(default=None)
    """CUDA compute capability, as `9.0`."""
    driver: str | None = text(default=None)
    cuda: str | None = text(default=None)
    cublaslt: str | None = text(default=None)
    comfy_kitchen: str | None = text(default=None)
    facts: str = text()


class Run(SQLModel, table=True):
    """One invocation that produces data."""

    __table_args__ = (
        one_of("status", RUN_STATUSES),
        json_text("argv"),
        json_text("params"),
        json_text("volatile"),
        Index("ix_run_started", "started_us"),
        Index("ix_run_command_started", "command", "started_us"),
        # The newest of each first: the migrations say `id DESC`, which reflection cannot see.
        Index("ix_run_command_newest", "command", "id"),
        Index("ix_run_status_newest", "status", "id"),
        # The longest first: here, too, each is DESC there.
        Index(
            "ix_run_took",
            condition("coalesce(finished_us, heartbeat_us) - started_us"),
            "id",
            "started_us",
            "finished_us",
            "heartbeat_us",
        ),
        Index("ix_run_live", "heartbeat_us", sqlite_where=condition("status = 'running'")),
        STRICT,
    )
    id: int | None = key()
    uuid: str = text(unique=True)
    """uuid7: sorts by time and survives a merge."""
    command: str = text()
    """capture, replay, import, export, fc2, benchmark."""
    mode: str | None = text(default=None)
    """What kind within the command, as `sweep` of fc2."""
    status: str = text(default="running")
    started_us: int
    finished_us: int | None = None
    heartbeat_us: int
    pid: int
    process_started_us: int | None = None
    """When the process began; tells a recycled pid from the owner."""
    boot_id: str | None = text(default=None)
    environment_id: int = Field(foreign_key="environment.id", index=True)
    parent_id: int | None = Field(default=None, foreign_key="run.id", index=True)
    exit_code: int | None = None
    git_commit: str | None = text(default=None)
    git_dirty: int | None = None
    host: str | None = text(default=None)
    gpu_uuid: str | None = text(default=None)
    note: str | None = text(default=None)
    argv: str = text()
    params: str = text()
    volatile: str | None = text(default=None)
    """Facts that change between runs of one environment: clocks, temperatures, switches."""
    summary: str | None = text(default=None)
    """One line for `runs list`: `12 captured, 3 definitions`."""


class RunTag(SQLModel, table=True):
    """A label that somebody put on a run."""

    __tablename__ = "run_tag"
    __table_args__ = (Index("ix_run_tag_tag", "tag", "run_id"), STRICT_KEYED)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    tag: str = text(primary_key=True)


class Error(SQLModel, table=True):
    """Something that went wrong inside a run."""

    __table_args__ = (json_text("context"), STRICT)
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)
    at_us: int
    operation: str = text()
    kind: str = text()
    """Exception type or kclab's own word: `timeout`, `crash`, `out of memory`."""
    message: str = text()
    traceback: str | None = text(default=None)
    context: str | None = text(default=None)
