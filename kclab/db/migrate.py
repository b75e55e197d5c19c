"""Creating and upgrading databases with Alembic.

Foreign keys are off while a migration runs: batch mode recreates tables, and with them on a
CASCADE would silently empty the children. They are checked before the commit instead.
"""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

from kclab.core.errors import DatabaseDamaged, DatabaseNewer
from kclab.db.connection import busy_timeout_ms, schema_revision, translated
from kclab.db.revision import KNOWN_REVISIONS, SCHEMA_REVISION


def migrations_folder() -> Path:
    """The repository's `migrations/` in a checkout, the packaged copy in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "migrations", package / "_migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise DatabaseDamaged("kclab's migrations are missing; reinstall kclab.")


def ensure_current(path: Path) -> Path | None:
    """Create or upgrade the database at `path`; returns the backup that an upgrade made.

    Raises DatabaseNewer or DatabaseDamaged and leaves the file untouched.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        upgrade(path)
        return None
    revision = schema_revision(path)
    if revision == SCHEMA_REVISION:
        return None
    if revision is not None and revision not in KNOWN_REVISIONS:
        raise DatabaseNewer(
            f"{path} has schema {revision}, which this kclab ({SCHEMA_REVISION}) does not know; "
            "use the newer kclab that wrote it."
        )
    backup = (
        None if revision is None else back_up(path, path.with_name(f"{path.name}.bak-{revision}"))
    )
    upgrade(path)
    return backup


def back_up(path: Path, destination: Path) -> Path:
    """Write a compact, consistent copy of a live database; an existing name gets a number."""
    target, number = destination, 1
    while target.exists():
        target, number = destination.with_name(f"{destination.name}.{number}"), number + 1
    with translated(path):
        connection = sqlite3.connect(path, timeout=busy_timeout_ms() / 1000)
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        finally:
            connection.close()
    return target


def upgrade(path: Path, revision: str = "head") -> None:
    """Run the migrations up to `revision` in one transaction, then check foreign keys."""
    from alembic import command
    from alembic.config import Config

    from kclab.db.session import migration_engine

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    engine = migration_engine(path)
    try:
        with warnings.catch_warnings(), translated(path), engine.begin() as connection:
            warnings.simplefilter("ignore")
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            _check_foreign_keys(path, connection)
    finally:
        engine.dispose()


def _check_foreign_keys(path: Path, connection: Any) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        raise DatabaseDamaged(
            f"{path}: upgrading would leave {len(broken)} rows without their parent "
            f"(first in table {broken[0][0]}); nothing was changed."
        )
