"""The tables of `kclab.db`, as SQLModel classes. Alembic migrations follow them.

Conventions: INTEGER surrogate keys inside one file, and a stable external key beside them for
merging (run uuid, workload uuid, sha256). Times are INTEGER microseconds UTC (`*_us`). JSON only
for what is never filtered on. A number that is NaN or infinite is stored as NULL with a reason.
Rows are written by `kclab.db.rows` (plain sqlite3: bulk rows, and inside engines) and by
`kclab.db.session` (single typed rows).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import REAL, CheckConstraint, Index, Integer, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

RUN_STATUSES = ("running", "passed", "failed", "empty", "error", "interrupted", "stale")
"""`empty`: nothing matched or was measured. `stale`: its process is gone and never said the end."""

REPLAY_STATUSES = ("passed", "failed", "error", "skipped")
"""`failed`: outputs differ. `error`: no outputs to compare. `skipped`: nothing to compare with."""

STRICT: dict[str, Any] = {"sqlite_strict": True}
STRICT_KEYED: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


def _json(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IS NULL OR json_valid({column})", name=f"{column}_json")


def _text(**options: Any) -> Any:
    return Field(sa_type=Text, **options)


def _real(**options: Any) -> Any:
    return Field(sa_type=REAL, **options)


def _key() -> Any:
    return Field(default=None, primary_key=True, sa_type=Integer)


class Environment(SQLModel, table=True):
    """The stable facts of a machine and its software; what comparisons stay within."""

    __table_args__ = (_json("facts"), STRICT)
    id: int | None = _key()
    sha256: str = _text(unique=True)
    """sha256 of `facts`, which is canonical JSON."""
    os: str = _text()
    python: str = _text()
    torch: str | None = _text(default=None)
    gpu: str | None = _text(default=None)
    capability: str | None = _text(default=None)
    """CUDA compute capability, as `9.0`."""
    driver: str | None = _text(default=None)
    cuda: str | None = _text(default=None)
    cublaslt: str | None = _text(default=None)
    comfy_kitchen: str | None = _text(default=None)
    facts: str = _text()


class Run(SQLModel, table=True):
    """One invocation that produces data."""

    __table_args__ = (
        _one_of("status", RUN_STATUSES),
        _json("argv"),
        _json("params"),
        _json("volatile"),
        Index("ix_run_started", "started_us"),
        Index("ix_run_command_started", "command", "started_us"),
        Index("ix_run_live", "heartbeat_us", sqlite_where=text("status = 'running'")),
        STRICT,
    )
    id: int | None = _key()
    uuid: str = _text(unique=True)
    """uuid7: sorts by time and survives a merge."""
    command: str = _text()
    """capture, replay, import, export, fc2, benchmark."""
    mode: str | None = _text(default=None)
    """What kind within the command, as `sweep` of fc2."""
    status: str = _text(default="running")
    started_us: int
    finished_us: int | None = None
    heartbeat_us: int
    pid: int
    process_started_us: int | None = None
    """When the process began; tells a recycled pid from the owner."""
    boot_id: str | None = _text(default=None)
    environment_id: int = Field(foreign_key="environment.id", index=True)
    parent_id: int | None = Field(default=None, foreign_key="run.id", index=True)
    exit_code: int | None = None
    git_commit: str | None = _text(default=None)
    git_dirty: int | None = None
    host: str | None = _text(default=None)
    gpu_uuid: str | None = _text(default=None)
    note: str | None = _text(default=None)
    argv: str = _text()
    params: str = _text()
    volatile: str | None = _text(default=None)
    """Facts that change between runs of one environment: clocks, temperatures, switches."""
    summary: str | None = _text(default=None)
    """One line for `runs list`: `12 captured, 3 definitions`."""


class RunTag(SQLModel, table=True):
    """A label that somebody put on a run."""

    __tablename__ = "run_tag"
    __table_args__ = (Index("ix_run_tag_tag", "tag", "run_id"), STRICT_KEYED)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    tag: str = _text(primary_key=True)


class Error(SQLModel, table=True):
    """Something that went wrong inside a run."""

    __table_args__ = (_json("context"), STRICT)
    id: int | None = _key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)
    at_us: int
    operation: str = _text()
    kind: str = _text()
    """Exception type or kclab's own word: `timeout`, `crash`, `out of memory`."""
    message: str = _text()
    traceback: str | None = _text(default=None)
    context: str | None = _text(default=None)


class Definition(SQLModel, table=True):
    """One version of an operator definition; versions of a name live side by side."""

    __table_args__ = (UniqueConstraint("name", "sha256"), _json("body"), STRICT)
    id: int | None = _key()
    name: str = _text()
    sha256: str = _text()
    """sha256 of the canonical JSON of `body`."""
    op_type: str = _text()
    family: str | None = _text(default=None)
    reference_sha256: str = _text()
    """sha256 of the reference's source text; what trust is given to."""
    body: str = _text()
    """The definition's JSON, verbatim keys included."""
    origin: str | None = _text(default=None)
    """`shipped`, `family`, or the path it came from."""
    added_us: int


class Blob(SQLModel, table=True):
    """One tensor's bytes, at `blob/<2 hex>/<62 hex>.safetensors` when present."""

    __table_args__ = (
        CheckConstraint("present IN (0, 1)", name="present"),
        _json("shape"),
        STRICT_KEYED,
    )
    sha256: str = _text(primary_key=True)
    dtype: str = _text()
    shape: str = _text()
    """JSON list of torch dimensions."""
    nbytes: int
    """Bytes of the elements alone."""
    present: int = 1
    """0: the bytes are elsewhere; `hint` says how to fetch them."""
    hint: str | None = _text(default=None)
    added_us: int
    verified_us: int | None = None
    """When the bytes were last re-hashed."""


class Workload(SQLModel, table=True):
    """Complete inputs of one operator call, by content."""

    __table_args__ = (
        _json("axes"),
        _json("extra"),
        Index("ix_workload_definition", "definition_id", "id"),
        STRICT,
    )
    id: int | None = _key()
    uuid: str = _text(unique=True)
    """uuid5 of the content; the same inputs are one workload in every store."""
    definition_id: int = Field(foreign_key="definition.id")
    axes: str = _text()
    """JSON object: the variable axes' sizes."""
    added_us: int
    extra: str | None = _text(default=None)
    """What a foreign dataset said besides: its uuid, path texts, unknown keys."""


class WorkloadInput(SQLModel, table=True):
    """One input of a workload: a blob, a Python scalar, or a foreign row's random marker."""

    __tablename__ = "workload_input"
    __table_args__ = (
        CheckConstraint(
            "(blob_sha256 IS NOT NULL) + (scalar IS NOT NULL) + (random IS NOT NULL) = 1",
            name="one_source",
        ),
        STRICT_KEYED,
    )
    workload_id: int = Field(primary_key=True, foreign_key="workload.id", ondelete="CASCADE")
    name: str = _text(primary_key=True)
    blob_sha256: str | None = _text(default=None, foreign_key="blob.sha256", index=True)
    scalar: str | None = _text(default=None)
    """JSON text of an int, float or bool."""
    random: str | None = _text(default=None)
    """JSON descriptor of an input that was never captured."""


class Request(SQLModel, table=True):
    """One request that an engine served while captures were taken."""

    __table_args__ = (
        UniqueConstraint("run_id", "request_id"),
        _json("payload"),
        _json("response"),
        STRICT,
    )
    id: int | None = _key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    request_id: str = _text()
    payload: str = _text()
    response: str | None = _text(default=None)
    status_code: int | None = None
    started_us: int
    finished_us: int | None = None


class Capture(SQLModel, table=True):
    """One occurrence of a workload: where, when, and with which outputs (the receipt)."""

    __table_args__ = (
        _json("receipt"),
        Index("ix_capture_run_site", "run_id", "site"),
        Index("ix_capture_workload", "workload_id", "captured_us"),
        Index("ix_capture_captured", "captured_us"),
        Index("ix_capture_arrived", "arrived_us"),
        STRICT,
    )
    id: int | None = _key()
    uuid: str = _text(unique=True)
    """The provenance uuid (the seed's recipe), so that old datasets stay addressable."""
    run_id: int = Field(foreign_key="run.id")
    workload_id: int = Field(foreign_key="workload.id")
    request_pk: int | None = Field(default=None, foreign_key="request.id", ondelete="SET NULL")
    request_id: str | None = _text(default=None)
    site: str = _text()
    """Canonical JSON of definition, module path, operation, step, variant, axes and rank."""
    operation: str = _text()
    module_path: str | None = _text(default=None)
    step: int | None = None
    variant: str | None = _text(default=None)
    process_id: int | None = None
    rank: int | None = None
    device: str | None = _text(default=None)
    stall_us: int | None = None
    """Time the engine's own thread spent in kclab for this call."""
    captured_us: int
    arrived_us: int
    receipt: str = _text()
    """Everything else about the occurrence, as one JSON object."""


class CaptureOutput(SQLModel, table=True):
    """One output that the engine itself computed."""

    __tablename__ = "capture_output"
    __table_args__ = (STRICT_KEYED,)
    capture_id: int = Field(primary_key=True, foreign_key="capture.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    name: str = _text()
    blob_sha256: str = _text(foreign_key="blob.sha256", index=True)


class CaptureWorker(SQLModel, table=True):
    """One process that took part in a capture run: when it acknowledged and drained."""

    __tablename__ = "capture_worker"
    __table_args__ = (STRICT_KEYED,)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    process: str = _text(primary_key=True)
    """`<host>:<pid>:<process start>`: unique even where pids are recycled."""
    rank: int | None = None
    engine: str | None = _text(default=None)
    acknowledged_us: int
    drained_us: int | None = None
    """NULL: the process ended without draining its queue."""
    note: str | None = _text(default=None)


class CaptureCount(SQLModel, table=True):
    """How many calls of a definition met one outcome in one process of a capture run."""

    __tablename__ = "capture_count"
    __table_args__ = (STRICT_KEYED,)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    process: str = _text(primary_key=True)
    definition: str = _text(primary_key=True)
    """A definition's name, or what was seen where no definition fits."""
    outcome: str = _text(primary_key=True)
    """`seen`, `selected`, `captured`, `duplicate`, or the reason of a skip."""
    count: int


class Replay(SQLModel, table=True):
    """One verdict on one capture."""

    __table_args__ = (
        _one_of("status", REPLAY_STATUSES),
        Index("ix_replay_run", "run_id", "status"),
        Index("ix_replay_subject", "subject", "started_us"),
        Index("ix_replay_started", "started_us"),
        Index("ix_replay_capture", "capture_id", "started_us", "status"),
        Index("ix_replay_definition", "definition_id", "started_us"),
        STRICT,
    )
    id: int | None = _key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    subject: str = _text()
    """The workload's uuid, as the store or the replayed root names it."""
    definition: str = _text()
    """The definition's name, also where its body is unknown."""
    capture_id: int | None = Field(default=None, foreign_key="capture.id", ondelete="CASCADE")
    """NULL: no engine output, or a root that was replayed in place and never imported."""
    workload_id: int | None = Field(
        default=None, foreign_key="workload.id", ondelete="CASCADE", index=True
    )
    definition_id: int | None = Field(default=None, foreign_key="definition.id")
    """The version that ran; NULL where there was none to run."""
    origin: str | None = _text(default=None)
    """`file:line` of a root that was replayed in place."""
    status: str = _text()
    reason: str | None = _text(default=None)
    """Why it did not simply pass, in one sentence."""
    warning: str | None = _text(default=None)
    """Why a pass proves little: no elements, or the truth lies below atol."""
    imported: int = 0
    """1: a verdict that came with a dataset and was not reached here."""
    device: str | None = _text(default=None)
    seconds: float | None = _real(default=None)
    started_us: int
    error_id: int | None = Field(default=None, foreign_key="error.id", ondelete="SET NULL")


class ReplayOutput(SQLModel, table=True):
    """How one output of the reference compares with the engine's."""

    __tablename__ = "replay_output"
    __table_args__ = (_json("worst_index"), _json("metrics"), STRICT_KEYED)
    replay_id: int = Field(primary_key=True, foreign_key="replay.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    name: str = _text()
    dtype: str = _text()
    passed: int
    policy: str = _text()
    """`allclose`, `exact`, `bytes`, or a named metric policy."""
    rtol: float | None = _real(default=None)
    atol: float | None = _real(default=None)
    elements: int
    mismatched: int
    max_abs: float | None = _real(default=None)
    rms: float | None = _real(default=None)
    relative_rms: float | None = _real(default=None)
    """RMS error over RMS of the engine's output."""
    worst_index: str | None = _text(default=None)
    """JSON list: the element with the largest error, or the first non-finite one."""
    worst_engine: str | None = _text(default=None)
    worst_reference: str | None = _text(default=None)
    """Text, since they may be nan or inf."""
    reason: str | None = _text(default=None)
    metrics: str | None = _text(default=None)


class OracleOutput(SQLModel, table=True):
    """Distances of engine and reference to the float64 truth, for one output."""

    __tablename__ = "oracle_output"
    __table_args__ = (_json("metrics"), STRICT_KEYED)
    replay_id: int = Field(primary_key=True, foreign_key="replay.id", ondelete="CASCADE")
    ordinal: int = Field(primary_key=True)
    verdict: str = _text()
    """`engine`, `reference`, `both`, `neither` (is off), or `undecided`."""
    engine_max_ulp: float | None = _real(default=None)
    engine_rms_ulp: float | None = _real(default=None)
    engine_max_abs: float | None = _real(default=None)
    reference_max_ulp: float | None = _real(default=None)
    reference_rms_ulp: float | None = _real(default=None)
    reference_max_abs: float | None = _real(default=None)
    bound_ulp: float | None = _real(default=None)
    """What rounding alone may do, in ulp of the output dtype."""
    metrics: str | None = _text(default=None)


class ForeignRecord(SQLModel, table=True):
    """A solution, trace or other file of a foreign dataset, kept so that an export is lossless."""

    __tablename__ = "foreign_record"
    __table_args__ = (UniqueConstraint("kind", "sha256"), _json("body"), STRICT)
    id: int | None = _key()
    kind: str = _text()
    """`solution` or `trace`."""
    sha256: str = _text()
    """sha256 of the canonical JSON of path and body."""
    definition: str | None = _text(default=None)
    workload_uuid: str | None = _text(default=None)
    path: str = _text()
    body: str = _text()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)


class Measurement(SQLModel, table=True):
    """A timing comparison: its samples' summary, written with them in one transaction."""

    __table_args__ = (Index("ix_measurement_run_name", "run_id", "name"), _json("detail"), STRICT)
    id: int | None = _key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    name: str = _text()
    """What was timed: a benchmark's name, or a GEMM candidate's scope."""
    baseline_ms: float | None = _real(default=None)
    """Median of the control arm."""
    candidate_ms: float | None = _real(default=None)
    """Median of the arm in question."""
    ratio: float | None = _real(default=None)
    """Median over pairs of baseline / candidate; above 1 is faster."""
    ratio_low: float | None = _real(default=None)
    ratio_high: float | None = _real(default=None)
    """95 % confidence interval of `ratio`."""
    pairs: int = 0
    verdict: str | None = _text(default=None)
    detail: str | None = _text(default=None)


class TimingSample(SQLModel, table=True):
    """One timed execution."""

    __tablename__ = "timing_sample"
    __table_args__ = (STRICT_KEYED,)
    measurement_id: int = Field(primary_key=True, foreign_key="measurement.id", ondelete="CASCADE")
    round: int = Field(primary_key=True)
    position: int = Field(primary_key=True)
    arm: str = _text()
    """A: the accepted baseline. B0: the heuristic's first choice. B: the candidate."""
    ms: float = _real()
