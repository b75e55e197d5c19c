"""Plain sqlite3 connections, all with the same settings. Loads nothing but the standard library.

Readers open the file read-only with `query_only`, so that looking never blocks or changes
anything. Writers run `BEGIN IMMEDIATE` through `writing`: a deferred transaction that turns into
a write fails at once under WAL however long the busy timeout is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kclab.core.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseMissing,
    DatabaseNewer,
    DatabaseOutdated,
    DatabaseProblem,
)
from kclab.db.revision import KNOWN_REVISIONS, SCHEMA_REVISION

BUSY_TIMEOUT_MS = 10_000
"""How long a writer waits for another one."""

WRITE_PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
    "PRAGMA foreign_keys=ON",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA temp_store=MEMORY",
)


def busy_timeout_ms() -> int:
    """The busy timeout in milliseconds; `KCLAB_BUSY_TIMEOUT_MS` overrides it."""
    return int(os.environ.get("KCLAB_BUSY_TIMEOUT_MS", BUSY_TIMEOUT_MS))


def connect_write(path: Path) -> sqlite3.Connection:
    """A read-write connection to an existing database of the current schema.

    Raises DatabaseMissing, DatabaseOutdated, DatabaseNewer or DatabaseDamaged.
    """
    require_current(path)
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_timeout_ms() / 1000)
    for pragma in WRITE_PRAGMAS:
        connection.execute(pragma)
    connection.execute(f"PRAGMA busy_timeout={busy_timeout_ms()}")
    connection.row_factory = sqlite3.Row
    return connection


def connect_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; rows come back as sqlite3.Row.

    Raises DatabaseMissing, DatabaseOutdated, DatabaseNewer or DatabaseDamaged.
    """
    require_current(path)
    connection = _open_read_only(path)
    connection.row_factory = sqlite3.Row
    return connection


def _open_read_only(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=busy_timeout_ms() / 1000
    )
    connection.execute("PRAGMA query_only=ON")
    return connection


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One write transaction: committed at the end of the block, rolled back on any exception.

    Inside an open transaction it joins that one, so that services compose.
    """
    if connection.in_transaction:
        yield connection
        return
    with translated(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


@contextmanager
def translated(connection: sqlite3.Connection | Path) -> Iterator[None]:
    """Turn sqlite3's operational errors into kclab's, each naming the database."""
    try:
        yield
    except sqlite3.OperationalError as error:
        path = connection if isinstance(connection, Path) else database_path(connection)
        if "locked" in str(error) or "busy" in str(error):
            raise DatabaseBusy(
                f"{path}: another process has held the write lock for "
                f"{busy_timeout_ms() / 1000:g} s; try again once it is done."
            ) from error
        if "disk is full" in str(error) or "readonly" in str(error):
            raise DatabaseProblem(f"{path}: {error}; nothing was written.") from error
        raise
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        path = connection if isinstance(connection, Path) else database_path(connection)
        raise DatabaseDamaged(f"{path}: {error}; it was left as it is.") from error


def database_path(connection: sqlite3.Connection) -> str:
    """The file behind a connection."""
    row = connection.execute("PRAGMA database_list").fetchone()
    return str(row[2])


def schema_revision(path: Path) -> str | None:
    """The Alembic revision of a database, None for an empty one.

    Raises DatabaseMissing or DatabaseDamaged.
    """
    if not path.exists():
        raise DatabaseMissing(
            f"{path}: no such database. The first command that writes makes it, "
            "or name another with --db or KCLAB_DB."
        )
    if path.is_dir():
        raise DatabaseDamaged(f"{path} is a folder, not a database.")
    with translated(path):
        connection = _open_read_only(path)
        try:
            names = {r[0] for r in connection.execute("SELECT name FROM sqlite_master")}
            if "alembic_version" not in names:
                if names:
                    raise DatabaseDamaged(
                        f"{path}: a SQLite database, but not one of kclab's; it was left as it is."
                    )
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            return None if row is None else str(row[0])
        finally:
            connection.close()


def require_current(path: Path) -> None:
    """Raise unless `path` is a database of exactly this kclab's schema."""
    revision = schema_revision(path)
    if revision == SCHEMA_REVISION:
        return
    if revision is None or revision in KNOWN_REVISIONS:
        found = "is empty" if revision is None else f"has schema {revision}"
        raise DatabaseOutdated(
            f"{path} {found}, this kclab uses {SCHEMA_REVISION}; run `kclab db upgrade`."
        )
    raise DatabaseNewer(
        f"{path} has schema {revision}, which this kclab ({SCHEMA_REVISION}) does not know; "
        "use the newer kclab that wrote it."
    )
