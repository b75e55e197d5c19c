"""The tables of the FC2 lab: boundaries, configs, what a search tried, what it found.

The same conventions as `kclab.db.models`. Timings are `measurement` and `timing_sample` rows.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, one_of, real, text

CANDIDATE_STATUSES = ("valid", "folded", "refused", "failed")
"""`folded`: launches the same as another candidate of the run. `refused`: by the library, with its
reason. `failed`: accepted and then not run, or wrong."""

GATE_STATUSES = ("passed", "failed")


class Boundary(SQLModel, table=True):
    """A GEMM in its place: a workload, its numerics, and what surrounds it."""

    __tablename__ = "fc2_boundary"
    __table_args__ = (
        CheckConstraint("m_padded >= m AND m > 0", name="rows"),
        json_text("recipe"),
        Index("ix_fc2_boundary_shape", "precision", "n", "k", "m"),
        STRICT,
    )
    id: int | None = key()
    workload_id: int = Field(foreign_key="workload.id", unique=True, ondelete="CASCADE")
    precision: str = text()
    """`bf16`, `fp8_e4m3` or `nvfp4`."""
    m: int
    """Logical rows."""
    m_padded: int
    n: int
    k: int
    fast_accumulation: int = 0
    source: str = text()
    """`synthetic`, `h3`, `checkpoint`, `captured` or `imported`."""
    block: int | None = None
    """The transformer block that it came from."""
    gate_up_sha256: str | None = text(default=None, foreign_key="blob.sha256", index=True)
    """The producer's input, [M, 2K], gate first."""
    block_input_sha256: str | None = text(default=None, foreign_key="blob.sha256", index=True)
    block_output_sha256: str | None = text(default=None, foreign_key="blob.sha256", index=True)
    recipe: str | None = text(default=None)
    """JSON: how to make the tensors again where no bytes are stored."""
    added_us: int


class AlgoConfig(SQLModel, table=True):
    """One algorithm choice; nine numbers, none of them NULL."""

    __tablename__ = "algo_config"
    __table_args__ = (
        UniqueConstraint(
            "algorithm_id",
            "tile_id",
            "stages_id",
            "split_k",
            "reduction_scheme",
            "cta_swizzle",
            "custom_option",
            "inner_shape",
            "cluster_shape",
        ),
        STRICT,
    )
    id: int | None = key()
    algorithm_id: int
    tile_id: int
    stages_id: int
    split_k: int
    reduction_scheme: int
    cta_swizzle: int
    custom_option: int
    inner_shape: int
    cluster_shape: int


class Validity(SQLModel, table=True):
    """What a result holds for, the workload aside."""

    __tablename__ = "fc2_validity"
    __table_args__ = (json_text("facts"), STRICT)
    id: int | None = key()
    sha256: str = text(unique=True)
    """sha256 of `facts`, which is canonical JSON."""
    backend: str = text()
    gpu: str | None = text(default=None)
    capability: str | None = text(default=None)
    driver: str | None = text(default=None)
    cublaslt: str | None = text(default=None)
    torch: str | None = text(default=None)
    facts: str = text()
    """All of it: alignment, torch's reduced-precision flags, CUBLAS* variables besides."""


class KernelLaunch(SQLModel, table=True):
    """What configs start on a device: kernel and geometry."""

    __tablename__ = "fc2_launch"
    __table_args__ = (STRICT,)
    id: int | None = key()
    sha256: str = text(unique=True)
    kernel: str = text()
    grid: str = text()
    """`296,1,1`."""
    block: str = text()
    cluster: str = text()
    shared_bytes: int
    kernels: int
    stream_k: int
    """1 where a kernel's name says so; there is no attribute."""


class Enumeration(SQLModel, table=True):
    """One question to the library's heuristic."""

    __tablename__ = "fc2_enumeration"
    __table_args__ = (STRICT_KEYED,)
    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    boundary_id: int = Field(primary_key=True, foreign_key="fc2_boundary.id", ondelete="CASCADE")
    budget: int = Field(primary_key=True)
    """Workspace bytes offered."""
    requested: int
    returned: int
    error: str | None = text(default=None)


class SearchCandidate(SQLModel, table=True):
    """One config that a run tried on a boundary, and how far it came."""

    __tablename__ = "fc2_candidate"
    __table_args__ = (
        UniqueConstraint("run_id", "boundary_id", "config_id"),
        one_of("status", CANDIDATE_STATUSES),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    boundary_id: int = Field(foreign_key="fc2_boundary.id", ondelete="CASCADE", index=True)
    config_id: int = Field(foreign_key="algo_config.id", index=True)
    origin: str = text()
    """`heuristic`, `neighbour`, `space` or `explicit`."""
    budget: int | None = None
    rank: int | None = None
    """Place in the heuristic's answer for `budget`, from 0."""
    required_workspace: int | None = None
    """Bytes; NULL is unknown, never zero."""
    waves: float | None = real(default=None)
    status: str = text()
    reason: str | None = text(default=None)
    launch_id: int | None = Field(default=None, foreign_key="fc2_launch.id", index=True)
    output_class: str | None = text(default=None)
    """Equal within a run for configs whose outputs are equal byte by byte."""
    exact: int | None = None
    """Whether that output equals the accepted baseline's."""
    screen_ratio: float | None = real(default=None)
    """Control / candidate in the race; above 1 is faster."""
    screen_samples: int = 0


class SearchCheck(SQLModel, table=True):
    """One thing that must hold before `exact` counts."""

    __tablename__ = "fc2_check"
    __table_args__ = (STRICT_KEYED,)
    candidate_id: int = Field(primary_key=True, foreign_key="fc2_candidate.id", ondelete="CASCADE")
    name: str = text(primary_key=True)
    """`determinism`, `ones`, `padding` or `reference`."""
    passed: int
    detail: str | None = text(default=None)


class SearchResult(SQLModel, table=True):
    """A config measured against both baselines."""

    __tablename__ = "fc2_result"
    __table_args__ = (
        # Covers what `fc2 best` reads of every result, in the order that it groups them by.
        Index(
            "ix_fc2_result_best",
            "scope",
            "exact",
            "boundary_id",
            "validity_id",
            "config_id",
            "measured_us",
            "ratio",
            "verdict",
            "is_control",
            "required_workspace",
            "checked",
            "stage",
        ),
        Index("ix_fc2_result_boundary", "boundary_id"),
        Index("ix_fc2_result_config", "config_id", "measured_us"),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)
    boundary_id: int = Field(foreign_key="fc2_boundary.id", ondelete="CASCADE")
    config_id: int = Field(foreign_key="algo_config.id")
    validity_id: int = Field(foreign_key="fc2_validity.id", index=True)
    launch_id: int | None = Field(default=None, foreign_key="fc2_launch.id", index=True)
    measurement_id: int | None = Field(
        default=None, foreign_key="measurement.id", ondelete="SET NULL", index=True
    )
    scope: str = text()
    """`gemm`, or `producer+gemm`."""
    stage: str = text()
    """How far the search was: `heuristics`, `neighbours`, `space`, `final`, `verify`, `import`."""
    search_seconds: float | None = real(default=None)
    """Time from the search's start until this result stood."""
    baseline: str = text()
    """What arm A ran."""
    required_workspace: int | None = None
    supplied_workspace: int
    a_ms: float | None = real(default=None)
    """Medians: the accepted baseline as users call it,"""
    b0_ms: float | None = real(default=None)
    """the heuristic's first choice through our runner,"""
    b_ms: float | None = real(default=None)
    """this config through our runner."""
    ratio: float | None = real(default=None)
    """B0 / B over pairs: the algorithm's gain."""
    ratio_low: float | None = real(default=None)
    ratio_high: float | None = real(default=None)
    baseline_ratio: float | None = real(default=None)
    """A / B over pairs: all of the gain."""
    wrapper_ratio: float | None = real(default=None)
    """A / B0 over pairs: the wrapper's part of it."""
    floor: float | None = real(default=None)
    """A/A noise floor as a relative difference."""
    drift: float | None = real(default=None)
    """Relative change of the control from first to last round."""
    pairs: int = 0
    verdict: str = text()
    """FAST, SAME, SLOW or UNDECIDED, against B0."""
    exact: int
    """Same bytes as A over logical rows."""
    checked: int | None = None
    """1: every check passed. NULL: none was made."""
    different: int | None = None
    """Elements that differ from A's."""
    output_sha256: str | None = text(default=None)
    is_control: int = 0
    """1: this is B0 itself."""
    imported: int = 0
    measured_us: int


class ResultParity(SQLModel, table=True):
    """One output against another, byte by byte."""

    __tablename__ = "fc2_parity"
    __table_args__ = (STRICT_KEYED,)
    result_id: int = Field(primary_key=True, foreign_key="fc2_result.id", ondelete="CASCADE")
    subject: str = text(primary_key=True)
    """`B:A` or `B0:A`."""
    exact: int
    elements: int
    different: int
    max_abs: float | None = real(default=None)
    mean_abs: float | None = real(default=None)
    actual_sha256: str = text()
    expected_sha256: str = text()
    reason: str | None = text(default=None)


class Gate(SQLModel, table=True):
    """A test of a config in its real surroundings."""

    __tablename__ = "fc2_gate"
    __table_args__ = (
        one_of("status", GATE_STATUSES),
        json_text("detail"),
        Index("ix_fc2_gate_config", "config_id", "boundary_id", "at_us"),
        STRICT,
    )
    id: int | None = key()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)
    boundary_id: int | None = Field(
        default=None, foreign_key="fc2_boundary.id", ondelete="CASCADE", index=True
    )
    config_id: int = Field(foreign_key="algo_config.id")
    validity_id: int = Field(foreign_key="fc2_validity.id", index=True)
    kind: str = text()
    """`process` (a fresh one), `block` or `trajectory`."""
    status: str = text()
    detail: str | None = text(default=None)
    at_us: int
