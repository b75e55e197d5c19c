"""SQLModel sessions for single, typed rows. Bulk rows and engines use `kclab.db.rows`.

pysqlite's own transactions lose updates: it sends no BEGIN for a SELECT, so two sessions can
read, change and write the same row. Here each transaction starts with BEGIN IMMEDIATE.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from kclab.db.connection import WRITE_PRAGMAS, require_current, translated


def _engine(path: Path, pragmas: tuple[str, ...]) -> Engine:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(pragma)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def migration_engine(path: Path) -> Engine:
    """An engine for Alembic: WAL is switched on, foreign keys stay off (see `migrate`)."""
    return _engine(path, ("PRAGMA busy_timeout=10000", "PRAGMA journal_mode=WAL"))


@contextmanager
def session(path: Path) -> Iterator[Session]:
    """One write transaction over typed rows: committed at the end, rolled back on an exception."""
    require_current(path)
    engine = _engine(path, WRITE_PRAGMAS)
    try:
        with translated(path), Session(engine, expire_on_commit=False) as current, current.begin():
            yield current
    finally:
        engine.dispose()
