"""SQLModel sessions for single, typed rows. Bulk rows and engines use `kclab.db.rows`.

pysqlite's own transactions lose updates: it sends no BEGIN for a SELECT, so two sessions can
read, change and write the same row. Here each transaction starts with BEGIN IMMEDIATE.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from kclab.db.connection import WRITE_PRAGMAS, explain, open_database, require_current, translated


def _engine(path: Path, mode: str, pragmas: tuple[str, ...]) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = open_database(path, mode)
        # SQLAlchemy's result rows are built from plain tuples.
        connection.row_factory = None
        for pragma in pragmas:
            connection.execute(pragma)
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def migration_engine(path: Path) -> Engine:
    """An engine for Alembic that may create the file; foreign keys stay off (see `migrate`)."""
    return _engine(path, "rwc", ("PRAGMA foreign_keys=OFF",))


@contextmanager
def session(path: Path) -> Iterator[Session]:
    """One write transaction over typed rows: committed at the end, rolled back on an exception.

    Raises what `kclab.db.connection.connect_write` raises, and DatabaseBusy.
    """
    require_current(path)
    engine = _engine(path, "rw", WRITE_PRAGMAS)
    try:
        with (
            database_errors(path),
            Session(engine, expire_on_commit=False) as current,
            current.begin(),
        ):
            yield current
    finally:
        engine.dispose()


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """`translated` for code that runs through SQLAlchemy, which wraps sqlite3's errors."""
    try:
        with translated(path):
            yield
    except DBAPIError as error:
        problem = error.orig and explain(error.orig, path)
        if problem is None:
            raise
        raise problem from error
