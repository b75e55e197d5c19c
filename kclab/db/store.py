"""A store: `kclab.db`, and beside it `blob/` (tensors), `files/` (images), `runs/` (logs)."""

from __future__ import annotations

import os
import sqlite3
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.blob.folder import BlobFolder
from kclab.blob.kept import FOLDER, KeptFolder
from kclab.core.errors import BadUsage, DatabaseMissing, DatabaseOutdated
from kclab.db.connection import connect_read, connect_write, require_current, uses_wal

DEFAULT_DATABASE = Path("kclab.db")


@dataclass(frozen=True, slots=True)
class Store:
    """Where the rows and the bytes are."""

    database: Path
    blobs: BlobFolder

    @classmethod
    def at(cls, database: Path) -> Store:
        """The store whose database is `database`; its blobs lie in `blob/` beside it.

        The path is made absolute, links followed: a later change of folder means the same store,
        and so does a link to it.
        """
        database = database.resolve()
        return cls(database, BlobFolder(database.parent / "blob"))

    @property
    def files(self) -> KeptFolder:
        """What is kept besides tensors."""
        return KeptFolder(self.database.parent / FOLDER)

    @property
    def run_folders(self) -> Path:
        """Where each run may have a folder of its own, named by its uuid."""
        return self.database.parent / "runs"

    def read(self) -> sqlite3.Connection:
        """A read-only connection; never creates or upgrades anything."""
        return connect_read(self.database)

    def write(self) -> sqlite3.Connection:
        """A read-write connection to a current database; see `open_for_writing` to make one."""
        return connect_write(self.database)


def open_for_writing(store: Store) -> Path | None:
    """Create or upgrade a store's database; returns the backup that an upgrade made.

    A copy (a backup, exported rows) gets its WAL here, before readers would wait for a writer.
    Raises DatabaseNewer, DatabaseDamaged, DatabaseBusy or DatabaseProblem.
    """
    try:
        require_current(store.database)
    except (DatabaseMissing, DatabaseOutdated):
        from kclab.db.migrate import ensure_current

        return ensure_current(store.database)
    if not uses_wal(store.database):
        from kclab.db.migrate import use_wal

        use_wal(store.database)
    return None


def locate_database(option: Path | None = None) -> Path:
    """The database to use: `--db`, KCLAB_DB, the project's settings, else ./kclab.db.

    The settings are `db` in the nearest kclab.toml (at its top or under `[tool.kclab]`) or
    pyproject.toml (under `[tool.kclab]`), in this folder or one above it; kclab.toml comes first
    in one folder. A path there is relative to that file. Raises BadUsage for a file without sense.
    """
    if option is not None:
        return option
    if named := os.environ.get("KCLAB_DB"):
        return Path(named).expanduser()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (found := _database_in(folder)) is not None:
            return found
    return DEFAULT_DATABASE


def _database_in(folder: Path) -> Path | None:
    for name in ("kclab.toml", "pyproject.toml"):
        path = folder / name
        if not path.is_file():
            continue
        settings = _settings(path)
        named = _table(_table(settings, "tool"), "kclab").get("db")
        if named is None and name == "kclab.toml":
            named = settings.get("db")
        if named is not None:
            return folder / _checked(path, named).expanduser()
    return None


def _settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path}: not valid TOML ({error}).") from error


def _table(settings: dict[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _checked(path: Path, named: Any) -> Path:
    if not isinstance(named, str) or not named:
        raise BadUsage(f"{path}: db is {named!r}; expected the path of a database, as text.")
    return Path(named)
