"""What a store holds: rows a table, bytes, and how much content addressing saves."""

from __future__ import annotations

import contextlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kclab.db.connection import journal_mode, translated
from kclab.db.garbage import blob_users
from kclab.db.store import Store


@dataclass(frozen=True, slots=True)
class Contents:
    """Counts and sizes of one store."""

    tables: dict[str, int]
    """Rows of each table that has any."""
    database_bytes: int
    """The database file with its WAL."""
    free_bytes: int
    """Of these, what deleted rows left behind."""
    journal_mode: str
    blobs: int
    absent_blobs: int
    """Blobs whose bytes are elsewhere."""
    blob_bytes: int
    """Element bytes of the blobs that are here."""
    used_bytes: int
    """Element bytes counted once for each use: what the store would hold without sharing."""

    @property
    def sharing(self) -> float | None:
        """Times that an average byte is used; None without blobs."""
        return self.used_bytes / self.blob_bytes if self.blob_bytes else None


def contents(store: Store) -> Contents:
    """Count a store; raises what `store.read` raises."""
    with closing(store.read()) as connection, translated(connection):
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        counts = {
            str(name): int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
            for (name,) in names
            if name != "alembic_version"
        }
        blobs = connection.execute(
            "SELECT count(*), coalesce(sum(NOT present), 0),"
            " coalesce(sum(CASE WHEN present THEN nbytes END), 0) FROM blob"
        ).fetchone()
        used = sum(
            connection.execute(
                f'SELECT coalesce(sum(nbytes), 0) FROM "{table}" JOIN blob'
                f' ON blob.sha256 = "{table}"."{column}" WHERE present'
            ).fetchone()[0]
            for table, column in blob_users(connection)
        )
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        free = connection.execute("PRAGMA freelist_count").fetchone()[0] * page
        mode = journal_mode(connection)
    return Contents(
        tables={name: count for name, count in sorted(counts.items()) if count},
        database_bytes=_bytes(store.database),
        free_bytes=free,
        journal_mode=mode,
        blobs=blobs[0],
        absent_blobs=blobs[1],
        blob_bytes=blobs[2],
        used_bytes=used,
    )


def _bytes(database: Path) -> int:
    total = 0
    for path in (database, database.with_name(f"{database.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
