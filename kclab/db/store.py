"""A store: `kclab.db` and the `blob/` folder beside it."""

from __future__ import annotations

import os
import sqlite3
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kclab.blob.folder import BlobFolder
from kclab.core.errors import BadUsage
from kclab.db.connection import connect_read, connect_write

DEFAULT_DATABASE = Path("kclab.db")


@dataclass(frozen=True, slots=True)
class Store:
    """Where the rows and the bytes are."""

    database: Path
    blobs: BlobFolder

    @classmethod
    def at(cls, database: Path) -> Store:
        """The store whose database is `database`; its blobs lie in `blob/` beside it."""
        return cls(database, BlobFolder(database.parent / "blob"))

    def read(self) -> sqlite3.Connection:
        """A read-only connection; never creates or upgrades anything."""
        return connect_read(self.database)

    def write(self) -> sqlite3.Connection:
        """A read-write connection to a current database; see `open_for_writing` to make one."""
        return connect_write(self.database)


def open_for_writing(store: Store) -> Path | None:
    """Create or upgrade a store's database; returns the backup that an upgrade made."""
    from kclab.core.errors import DatabaseMissing, DatabaseOutdated
    from kclab.db.connection import require_current

    try:
        require_current(store.database)
    except (DatabaseMissing, DatabaseOutdated):
        from kclab.db.migrate import ensure_current

        return ensure_current(store.database)
    return None


def locate_database(option: Path | None = None) -> Path:
    """The database to use: `--db`, KCLAB_DB, kclab.toml or pyproject.toml, else ./kclab.db.

    A path in a TOML file is relative to that file.
    """
    if option is not None:
        return option
    if named := os.environ.get("KCLAB_DB"):
        return Path(named)
    for name, table in (("kclab.toml", ()), ("pyproject.toml", ("tool", "kclab"))):
        if found := _database_in(Path(name), table):
            return found
    return DEFAULT_DATABASE


def _database_in(path: Path, table: tuple[str, ...]) -> Path | None:
    if not path.is_file():
        return None
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadUsage(f"{path}: not valid TOML ({error}).") from error
    for key in table or _toml_tables(settings):
        settings = settings.get(key, {})
    named = settings.get("db")
    return None if named is None else path.parent / Path(named).expanduser()


def _toml_tables(settings: dict[str, object]) -> tuple[str, ...]:
    return ("tool", "kclab") if "tool" in settings else ()
