"""What is stored by its content: definitions, blobs, workloads."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from kclab.db.models.columns import STRICT, STRICT_KEYED, json_text, key, text


class Definition(SQLModel, table=True):
    """One version of an operator definition; versions of a name live side by side."""

    __table_args__ = (UniqueConstraint("name", "sha256"), json_text("body"), STRICT)
    id: int | None = key()
    name: str = text()
    sha256: str = text()
    """sha256 of the canonical JSON of `body`."""
    op_type: str = text()
    family: str | None = text(default=None)
    reference_sha256: str = text()
    """sha256 of the reference's source text; what trust is given to."""
    body: str = text()
    """The definition's JSON, verbatim keys included."""
    origin: str | None = text(default=None)
    """`shipped`, `family`, or the path it came from."""
    added_us: int


class Blob(SQLModel, table=True):
    """One tensor's bytes, at `blob/<2 hex>/<62 hex>.safetensors` when present."""

    __table_args__ = (
        CheckConstraint("present IN (0, 1)", name="present"),
        json_text("shape"),
        STRICT_KEYED,
    )
    sha256: str = text(primary_key=True)
    dtype: str = text()
    shape: str = text()
    """JSON list of torch dimensions."""
    nbytes: int
    """Bytes of the elements alone."""
    present: int = 1
    """0: the bytes are elsewhere; `hint` says how to fetch them."""
    hint: str | None = text(default=None)
    added_us: int
    verified_us: int | None = None
    """When the bytes were last re-hashed."""


class Workload(SQLModel, table=True):
    """Complete inputs of one operator call, by content."""

    __table_args__ = (
        json_text("axes"),
        json_text("extra"),
        Index("ix_workload_definition", "definition_id", "id"),
        STRICT,
    )
    id: int | None = key()
    uuid: str = text(unique=True)
    """uuid5 of the content; the same inputs are one workload in every store."""
    definition_id: int = Field(foreign_key="definition.id")
    axes: str = text()
    """JSON object: the variable axes' sizes."""
    added_us: int
    extra: str | None = text(default=None)
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
    name: str = text(primary_key=True)
    blob_sha256: str | None = text(default=None, foreign_key="blob.sha256", index=True)
    scalar: str | None = text(default=None)
    """JSON text of an int, float or bool."""
    random: str | None = text(default=None)
    """JSON descriptor of an input that was never captured."""


class ForeignRecord(SQLModel, table=True):
    """A solution, trace or other file of a foreign dataset, kept so that an export is lossless."""

    __tablename__ = "foreign_record"
    __table_args__ = (UniqueConstraint("kind", "sha256"), json_text("body"), STRICT)
    id: int | None = key()
    kind: str = text()
    """`solution` or `trace`."""
    sha256: str = text()
    """sha256 of the canonical JSON of path and body."""
    definition: str | None = text(default=None)
    workload_uuid: str | None = text(default=None)
    path: str = text()
    body: str = text()
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", index=True)
