"""Other databases in a store's folder: they share its blobs, whoever cleans up.

`--db a.db` and `--db b.db` of one folder have one `blob/`; so have a backup, and a database that
was put aside. What any of them names is in use.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kclab.core.errors import DatabaseProblem
from kclab.db.connection import open_database
from kclab.db.store import Store

HEADER = b"SQLite format 3\0"


def named_beside(store: Store) -> set[str]:
    """Digests that have a row in any other database of the store's folder.

    Raises DatabaseProblem for one that cannot be read: what it needs is not known.
    """
    return {digest for path in _databases(store) for digest in _digests(path)}


def _databases(store: Store) -> Iterator[Path]:
    own = store.database.resolve()
    for path in sorted(own.parent.iterdir()):
        if path.is_file() and path.resolve() != own and _begins_like_one(path):
            yield path


def _begins_like_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(HEADER)) == HEADER
    except OSError:
        return False


def _digests(path: Path) -> list[str]:
    try:
        with closing(open_database(path, "ro")) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'blob'").fetchone():
                return []
            return [str(row[0]) for row in connection.execute("SELECT sha256 FROM blob")]
    except sqlite3.Error as error:
        raise DatabaseProblem(
            f"{path} shares the blobs here and cannot be read ({error}), so nobody knows which it "
            "needs; move it to another folder first."
        ) from error
