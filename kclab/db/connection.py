"""Plain sqlite3 connections, all with the same settings. Loads nothing but the standard library.

Readers open the file read-only with `query_only`, so that looking never blocks or changes
anything. Writers run `BEGIN IMMEDIATE` through `writing`: a deferred transaction that turns into
a write fails at once under WAL however long the busy timeout is.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kclab.core.errors import (
    BadUsage,
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
    "PRAGMA foreign_keys=ON",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA temp_store=MEMORY",
)

OWN_TABLES = frozenset({"run", "workload", "blob"})
"""What every kclab database has had since the first revision; other projects use Alembic too."""


def busy_timeout_ms() -> int:
    """The busy timeout in milliseconds; `KCLAB_BUSY_TIMEOUT_MS` overrides it."""
    asked = os.environ.get("KCLAB_BUSY_TIMEOUT_MS", str(BUSY_TIMEOUT_MS))
    if not asked.isdecimal():
        raise BadUsage(f"KCLAB_BUSY_TIMEOUT_MS={asked}: expected a whole number of milliseconds.")
    return int(asked)


def connect_write(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """A read-write connection to an existing database of the current schema.

    With `any_thread`, others than the calling thread may use it, one at a time.
    Raises DatabaseMissing, DatabaseOutdated, DatabaseNewer, DatabaseDamaged or DatabaseProblem.
    """
    require_current(path)
    with translated(path):
        connection = open_database(path, "rw", any_thread=any_thread)
        for pragma in WRITE_PRAGMAS:
            connection.execute(pragma)
    return connection


def connect_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; rows come back as sqlite3.Row.

    Raises DatabaseMissing, DatabaseOutdated, DatabaseNewer, DatabaseDamaged or DatabaseProblem.
    """
    with translated(path):
        connection = _open_to_look(path)
        try:
            _require(path, _revision(path, connection))
        except BaseException:
            connection.close()
            raise
    return connection


def open_database(path: Path, mode: str, *, any_thread: bool = False) -> sqlite3.Connection:
    """A bare connection in autocommit with the busy timeout.

    `mode` is SQLite's: ro, rw, rwc (which creates), or `ro&immutable=1`.
    """
    connection = sqlite3.connect(
        database_uri(path, mode),
        uri=True,
        isolation_level=None,
        timeout=busy_timeout_ms() / 1000,
        check_same_thread=not any_thread,
    )
    connection.row_factory = sqlite3.Row
    return connection


def database_uri(path: Path, mode: str) -> str:
    """The SQLite URI of a file; any character may stand in its name."""
    return f"{path.resolve().as_uri()}?mode={mode}"


def _open_to_look(path: Path) -> sqlite3.Connection:
    """Open read-only, also where the folder lets nobody make the WAL's side files."""
    require_file(path)
    try:
        return _opened_to_look(path, "ro")
    except sqlite3.OperationalError as error:
        if _primary(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
    return _open_immutable(path)


def _opened_to_look(path: Path, mode: str) -> sqlite3.Connection:
    connection = open_database(path, mode)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_immutable(path: Path) -> sqlite3.Connection:
    wal = path.with_name(f"{path.name}-wal")
    if not os.access(path, os.R_OK):
        raise DatabaseProblem(f"{path}: not readable by this user.")
    if wal.is_file() and wal.stat().st_size:
        raise DatabaseProblem(
            f"{path}: its folder is read-only and its last changes are still in {wal.name}; "
            "copy both to a folder that you can write to, and look there."
        )
    return _opened_to_look(path, "ro&immutable=1")


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
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def translated(database: sqlite3.Connection | Path) -> Iterator[None]:
    """Turn what can go wrong with a database file into kclab's errors, each naming the file.

    Programming mistakes (a wrong statement, a broken constraint) stay sqlite3's own.
    """
    try:
        yield
    except sqlite3.Error as error:
        problem = explain(error, database)
        if problem is None:
            raise
        raise problem from error


def explain(error: BaseException, database: sqlite3.Connection | Path) -> DatabaseProblem | None:
    """kclab's error for one of sqlite3's; None where the fault is not the file's."""
    if not isinstance(error, sqlite3.Error):
        return None
    code = _primary(error)
    path = database if isinstance(database, Path) else database_path(database)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusy(
            f"{path}: another process has held the write lock for "
            f"{busy_timeout_ms() / 1000:g} s; try again once it is done."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DatabaseDamaged(
            f"{path}: {error}; it was left as it is. Go back to a copy (kclab db backup makes "
            "them, and so does each upgrade), or put it aside with `kclab db init --force`."
        )
    if code in _REFUSALS:
        reason = "the disk is full; free some space" if _is_full(Path(path)) else error
        return DatabaseProblem(f"{path}: {reason}; nothing was written.")
    return None


def _is_full(path: Path) -> bool:
    """Whether nothing more fits beside a file: SQLite calls that an I/O error while it looks."""
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


_REFUSALS = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_TOOBIG,
)


def _primary(error: sqlite3.Error) -> int:
    """The primary result code; sqlite3 sets none on errors of its own making."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def database_path(connection: sqlite3.Connection) -> str:
    """The file behind a connection."""
    try:
        return str(connection.execute("PRAGMA database_list").fetchone()[2])
    except sqlite3.Error:
        return "the database"


def journal_mode(connection: sqlite3.Connection) -> str:
    """The journal that SQLite really uses: `wal`, unless the file system cannot share memory.

    A connection to a read-only folder knows of no journal; there the file tells.
    """
    mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    return "wal" if mode == "delete" and uses_wal(path) else mode


def uses_wal(path: Path) -> bool:
    """Whether the file says that its journal is a WAL; reads two bytes, opens no connection."""
    with path.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"  # the file format's write and read version


def require_file(path: Path) -> None:
    """Raise DatabaseMissing or DatabaseDamaged unless `path` is a file."""
    if path.is_dir():
        inside = path / "kclab.db"
        hint = f"; did you mean {inside}?" if inside.is_file() else ", not a database."
        raise DatabaseDamaged(f"{path} is a folder{hint}")
    if not path.exists():
        raise DatabaseMissing(
            f"{path}: no such database. The first command that writes makes it, "
            "or name another with --db or KCLAB_DB."
        )
    if not path.is_file():
        raise DatabaseDamaged(f"{path} is not a regular file.")


def schema_revision(path: Path) -> str | None:
    """The Alembic revision of a database, None for an empty one.

    Raises DatabaseMissing, DatabaseDamaged or DatabaseProblem.
    """
    with translated(path):
        connection = _open_to_look(path)
        try:
            return _revision(path, connection)
        finally:
            connection.close()


def _revision(path: Path, connection: sqlite3.Connection) -> str | None:
    names = {r[0] for r in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return None
    if not names >= OWN_TABLES | {"alembic_version"}:
        raise DatabaseDamaged(
            f"{path}: a SQLite database, but not one of kclab's; it was left as it is."
        )
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None:
        raise DatabaseDamaged(f"{path}: it has lost its schema revision; it was left as it is.")
    return str(row[0])


def require_current(path: Path) -> None:
    """Raise unless `path` is a database of exactly this kclab's schema."""
    _require(path, schema_revision(path))


def _require(path: Path, revision: str | None) -> None:
    if revision == SCHEMA_REVISION:
        return
    require_known(path, revision)
    found = "is empty" if revision is None else f"has schema {revision}"
    command = f"kclab db upgrade --db {shlex.quote(str(path))}"
    raise DatabaseOutdated(f"{path} {found}, this kclab uses {SCHEMA_REVISION}; run `{command}`.")


def require_known(path: Path, revision: str | None) -> None:
    """Raise DatabaseNewer for a revision that this kclab has never heard of."""
    if revision is not None and revision not in KNOWN_REVISIONS:
        raise DatabaseNewer(
            f"{path} has schema {revision}, which this kclab ({SCHEMA_REVISION}) does not know; "
            "use the newer kclab that wrote it."
        )
