"""Creating and upgrading databases with Alembic.

Foreign keys are off while a migration runs: batch mode recreates tables, and with them on a
CASCADE would silently empty the children. They are checked before the commit instead.
The whole upgrade is one transaction, so that a failed or killed one leaves the database as it was.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

from kclab.core.errors import DatabaseDamaged, DatabaseProblem
from kclab.core.units import counted
from kclab.db.connection import (
    busy_timeout_ms,
    explain,
    journal_mode,
    open_database,
    require_file,
    require_known,
    schema_revision,
    translated,
    uses_wal,
)
from kclab.db.revision import SCHEMA_REVISION

log = logging.getLogger(__name__)


def migrations_folder() -> Path:
    """The repository's `migrations/` in a checkout, the packaged copy in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "migrations", package / "_migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise DatabaseProblem("kclab's migrations are missing; reinstall kclab.")


def ensure_current(path: Path) -> Path | None:
    """Create or upgrade the database at `path`; returns the backup that an upgrade made.

    Raises DatabaseNewer, DatabaseDamaged or DatabaseProblem and leaves the file untouched.
    """
    revision = None
    if path.exists():
        revision = schema_revision(path)
        require_known(path, revision)
    else:
        _make_folder(path.parent)
    if revision != SCHEMA_REVISION or not uses_wal(path):
        warn_without_wal(path, use_wal(path))
    return None if revision == SCHEMA_REVISION else upgrade(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseProblem(f"{folder}: cannot make this folder ({error.strerror}).") from error


def use_wal(path: Path) -> str:
    """Switch to WAL, once for the life of the file; returns the journal that it now has.

    Asking does not fail where WAL cannot be. A copy that SQLite wrote (a backup, exported rows)
    starts without.
    """
    deadline = time.monotonic() + busy_timeout_ms() / 1000
    with translated(path), closing(open_database(path, "rwc")) as connection:
        # Two that switch at once would each wait for the other to let go.
        connection.execute("PRAGMA busy_timeout=0")
        while not _switched(connection, deadline):
            time.sleep(random.uniform(0.001, 0.02))
        return journal_mode(connection)


def _switched(connection: sqlite3.Connection, deadline: float) -> bool:
    """Whether SQLite answered; it was busy with others who switch or write if not."""
    try:
        if journal_mode(connection) != "wal":
            connection.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        if not busy or time.monotonic() > deadline:
            raise
        return False
    return True


def warn_without_wal(path: Path, mode: str) -> None:
    """Log a warning where readers and writers will have to wait for each other."""
    if mode != "wal":
        log.warning(
            "%s: journal mode %s instead of WAL, so readers and writers wait for each other; "
            "`kclab db upgrade` switches to WAL where the file system can, as a local disk can.",
            path,
            mode,
        )


def back_up(path: Path, destination: Path) -> Path:
    """Write a compact, consistent copy of a live database; an existing name gets a number.

    Raises DatabaseMissing, DatabaseDamaged, DatabaseBusy or DatabaseProblem.
    """
    require_file(path)
    _make_folder(destination.parent)
    target, number = destination, 1
    while not _reserve(target):
        target, number = destination.with_name(f"{destination.name}.{number}"), number + 1
    try:
        with translated(path), closing(open_database(path, "ro")) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
        _sync_file(target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def set_aside(path: Path) -> Path | None:
    """Rename a database, or whatever file lies there, out of the way; None where nothing does.

    Its WAL goes with it, so that the renamed database still has its last changes.
    Raises DatabaseProblem where it cannot be renamed.
    """
    if not path.exists():
        return None
    number = 1
    while (kept := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    try:
        for side in ("-wal", "-shm", ""):
            beside = path.with_name(path.name + side)
            if beside.exists():
                beside.rename(kept.with_name(kept.name + side))
    except OSError as error:
        raise DatabaseProblem(f"{path}: cannot be renamed ({error.strerror}).") from error
    return kept


def _reserve(target: Path) -> bool:
    """Make an empty file (which VACUUM INTO fills); False where the name is taken."""
    try:
        target.open("xb").close()
    except FileExistsError:
        return False
    except OSError as error:
        raise DatabaseProblem(f"{target}: cannot write the copy ({error.strerror}).") from error
    return True


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def upgrade(path: Path, revision: str = "head") -> Path | None:
    """Run the migrations up to `revision` in one transaction; returns the backup it made first.

    An empty database needs no backup. Several processes may do this at once: one upgrades, the
    others wait and find it done.
    """
    from kclab.db.session import database_errors, migration_engine

    engine = migration_engine(path)
    try:
        with database_errors(path), engine.begin() as connection:
            found = _revision_inside(connection)
            if found == SCHEMA_REVISION:
                return None
            # The write lock is ours, so nothing changes between this copy and the upgrade.
            backup = back_up(path, path.with_name(f"{path.name}.bak-{found}")) if found else None
            try:
                _run_migrations(path, connection, revision)
                _check_foreign_keys(path, connection)
            except BaseException:
                # The database stays as it was: that copy would only be one more with each try.
                if backup is not None:
                    backup.unlink(missing_ok=True)
                raise
            return backup
    finally:
        engine.dispose()


def _revision_inside(connection: Any) -> str | None:
    table = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
    if connection.exec_driver_sql(table).scalar() is None:
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return None if found is None else str(found)


def _run_migrations(path: Path, connection: Any, revision: str) -> None:
    """Raises DatabaseDamaged where a migration does not find the tables or indexes it changes."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.exc import OperationalError

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            command.upgrade(config, revision)
        except OperationalError as error:
            if error.orig is None or explain(error.orig, path) is not None:
                raise
            raise DatabaseDamaged(
                f"{path} cannot be upgraded: it is not as its schema revision says ({error.orig}); "
                "nothing was changed. Go back to a copy (kclab db backup makes them, and so does "
                "each upgrade), or put it aside with `kclab db init --force`."
            ) from error


def _check_foreign_keys(path: Path, connection: Any) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        raise DatabaseDamaged(
            f"{path}: upgrading would leave {counted(len(broken), 'row')} without a parent "
            f"(first in table {broken[0][0]}); nothing was changed."
        )
