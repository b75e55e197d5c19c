"""What the tables' columns are made of; see `kclab.db.models` for the conventions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import REAL, CheckConstraint, Integer, Text
from sqlmodel import Field, SQLModel

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

STRICT: dict[str, Any] = {"sqlite_strict": True}
"""A table with an INTEGER key of its own."""

STRICT_KEYED: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}
"""A table that is stored by its primary key."""


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """The column holds one of these words."""
    allowed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


def json_text(column: str) -> CheckConstraint:
    """The column holds JSON, or NULL."""
    return CheckConstraint(f"{column} IS NULL OR json_valid({column})", name=f"{column}_json")


def text(**options: Any) -> Any:
    """A TEXT column; SQLModel's own VARCHAR is no type of a STRICT table."""
    return Field(sa_type=Text, **options)


def real(**options: Any) -> Any:
    """A REAL column; SQLModel's own FLOAT is no type of a STRICT table."""
    return Field(sa_type=REAL, **options)


def key() -> Any:
    """The INTEGER key inside this one file."""
    return Field(default=None, primary_key=True, sa_type=Integer)
