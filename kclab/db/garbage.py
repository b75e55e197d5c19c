"""`kclab db gc`: find and remove what nothing uses any more.

Blob rows that no workload and no output names (with their files), files without a row, temporaries
that killed processes left; and images that no request names, folders of runs that are gone (see
`kclab.db.kept_garbage`). Removing is safe beside running captures and
imports, because whoever writes makes a blob's file young before it commits the row, and here

1. only what has not been touched for a while counts;
2. it is looked at again inside a write transaction, so that no row can come meanwhile;
3. a file is first moved aside, and comes back if it turns out to have become young;
4. while a run is alive, no row is removed, nor any file younger than that run;
5. what another database of the same folder names is in use.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kclab.blob.folder import TEMPORARY_FOLDER, BlobFolder
from kclab.core.times import Microseconds, now_us
from kclab.db.beside import named_beside
from kclab.db.connection import translated, writing
from kclab.db.kept_garbage import KeptGarbage, find_kept, remove_kept
from kclab.db.runs import effective_status
from kclab.db.store import Store

CLOCK_MARGIN_US = 60_000_000
"""A file's time may lie before its writer's: kernels round it down, file servers have their own
clock."""

CHUNK = 500
"""Blobs looked at in one write transaction; other writers wait that long."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go."""

    rows: tuple[str, ...]
    """Digests of blob rows that nothing names."""
    files: tuple[str, ...]
    """Digests of files without a row."""
    leftovers: tuple[Path, ...]
    """Temporary files."""
    kept: KeptGarbage
    """Images and run folders."""
    nbytes: int
    """Bytes on disk of all of them."""
    alive: tuple[str, ...]
    """Uuids of runs that are going on; while there is one, `rows` is empty."""
    before_us: Microseconds
    """Only what was last touched before this instant, microseconds UTC."""

    @property
    def count(self) -> int:
        """How many things would be removed."""
        return len(self.rows) + len(self.files) + len(self.leftovers) + self.kept.count


@dataclass(frozen=True, slots=True)
class Removed:
    """What went."""

    rows: int
    files: int
    leftovers: int
    kept: int
    """Images and run folders."""
    nbytes: int


def find_garbage(store: Store, older_than_us: Microseconds) -> Garbage:
    """List what was last touched more than `older_than_us` ago and nothing uses.

    Raises what `store.read` raises, and DatabaseProblem for another database beside it that
    cannot be read.
    """
    with closing(store.read()) as connection, translated(connection):
        alive = _alive(connection)
        started = [start - CLOCK_MARGIN_US for start in alive.values()]
        before = min([now_us() - older_than_us, *started])
        files = [s for s in store.blobs.present() if _age_us(store.blobs.path(s)) < before]
        known = {str(row[0]) for row in connection.execute("SELECT sha256 FROM blob")}
        beside = named_beside(store)
        unused = [] if alive else sorted(set(_unused(connection)) - beside)
        rows = [s for s in unused if _age_us(store.blobs.path(s)) < before]
        kept = find_kept(store, connection, before)
    strangers = sorted(set(files) - known - beside)
    leftovers = sorted(path for path in store.blobs.leftovers() if _age_us(path) < before)
    paths = [*(store.blobs.path(sha256) for sha256 in (*rows, *strangers)), *leftovers]
    nbytes = kept.nbytes + sum(_size(path) for path in paths)
    return Garbage(
        rows=tuple(rows),
        files=tuple(strangers),
        leftovers=tuple(leftovers),
        kept=kept,
        nbytes=nbytes,
        alive=tuple(sorted(alive)),
        before_us=before,
    )


def remove_garbage(store: Store, garbage: Garbage) -> Removed:
    """Remove what `find_garbage` found, as far as it still is garbage.

    Rows go and are committed before their files, so that being killed in between leaves files
    without a row, never a row without its file. Raises what `store.write` raises, and DatabaseBusy.
    """
    with closing(store.write()) as connection:
        rows = _remove_rows(connection, store.blobs, garbage)
        sizes = _remove_files(connection, store.blobs, (*rows, *garbage.files), garbage.before_us)
        kept = remove_kept(store, connection, garbage.kept, garbage.before_us)
    discarded = [_discard(store.blobs, path, garbage.before_us) for path in garbage.leftovers]
    leftovers = [size for size in discarded if size is not None]
    files = len(set(sizes) - set(rows))
    nbytes = sum(sizes.values()) + sum(leftovers) + sum(kept)
    return Removed(len(rows), files, len(leftovers), len(kept), nbytes)


def _remove_rows(connection: sqlite3.Connection, blobs: BlobFolder, garbage: Garbage) -> list[str]:
    """Digests of the rows that went."""
    unused = _unused_query(connection) + " AND sha256 = ?"
    gone = []
    for chunk in _chunks(garbage.rows):
        with writing(connection):
            for sha256 in chunk:
                still = connection.execute(unused, (sha256,)).fetchone() is not None
                if still and _age_us(blobs.path(sha256)) < garbage.before_us:
                    connection.execute("DELETE FROM blob WHERE sha256 = ?", (sha256,))
                    gone.append(sha256)
    return gone


def _remove_files(
    connection: sqlite3.Connection,
    blobs: BlobFolder,
    digests: Sequence[str],
    before_us: Microseconds,
) -> dict[str, int]:
    """digest: bytes of the files that went; those that have got a row stay."""
    gone = {}
    known = "SELECT 1 FROM blob WHERE sha256 = ?"
    for chunk in _chunks(digests):
        with writing(connection):
            for sha256 in chunk:
                if connection.execute(known, (sha256,)).fetchone() is None:
                    size = _discard(blobs, blobs.path(sha256), before_us)
                    if size is not None:
                        gone[sha256] = size
    return gone


def _alive(connection: sqlite3.Connection) -> dict[str, Microseconds]:
    """uuid: start of the runs that are going on."""
    rows = connection.execute("SELECT * FROM run WHERE status = 'running'").fetchall()
    return {
        str(row["uuid"]): int(row["started_us"])
        for row in rows
        if effective_status(row) == "running"
    }


def _unused(connection: sqlite3.Connection) -> list[str]:
    """Digests of the blob rows that no other row names."""
    return [str(row[0]) for row in connection.execute(_unused_query(connection))]


def _unused_query(connection: sqlite3.Connection) -> str:
    names = " AND ".join(
        f'NOT EXISTS (SELECT 1 FROM "{table}" WHERE "{table}"."{column}" = blob.sha256)'
        for table, column in blob_users(connection)
    )
    return f"SELECT sha256 FROM blob WHERE {names}"


def blob_users(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """(table, column) of everything that names a blob, by the schema's own foreign keys."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [
        (str(table), str(key["from"]))
        for (table,) in tables
        for key in connection.execute(f'PRAGMA foreign_key_list("{table}")')
        if key["table"] == "blob"
    ]


def _discard(blobs: BlobFolder, path: Path, before_us: Microseconds) -> int | None:
    """Remove a file unless it became young; its size, 0 if it is gone already, None if it stays."""
    aside = blobs.root / TEMPORARY_FOLDER / f"gc-{uuid.uuid4().hex}"
    try:
        aside.parent.mkdir(exist_ok=True)
        path.rename(aside)
    except FileNotFoundError:
        return 0
    status = aside.stat()
    if status.st_mtime_ns // 1000 >= before_us:
        aside.rename(path)
        return None
    aside.unlink()
    return status.st_size


def _age_us(path: Path) -> Microseconds:
    """When a file was last touched; far in the past for one that is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_mtime_ns // 1000
    return 0


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def _chunks(digests: Iterable[str]) -> Iterator[list[str]]:
    source = iter(digests)
    while chunk := list(islice(source, CHUNK)):
        yield chunk
