"""What `kclab db gc` finds beside the blobs: images that no request names, folders of gone runs.

Safe beside running captures for the same reasons as blobs: whoever keeps a file makes it young
before a row names it, and here it is moved aside, looked at again, and put back if it became young.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kclab.blob.kept import KeptName
from kclab.core.times import Microseconds
from kclab.db.connection import writing
from kclab.db.kept_files import is_named, named_files
from kclab.db.store import Store


@dataclass(frozen=True, slots=True)
class KeptGarbage:
    """What may go."""

    files: tuple[KeptName, ...]
    folders: tuple[Path, ...]
    """Of runs that have no row."""
    leftovers: tuple[Path, ...]
    nbytes: int

    @property
    def count(self) -> int:
        """How many things would be removed."""
        return len(self.files) + len(self.folders) + len(self.leftovers)


def find_kept(store: Store, connection: sqlite3.Connection, before_us: Microseconds) -> KeptGarbage:
    """List what was last touched before this instant and nothing names."""
    old = [n for n in store.files.present() if _touched_us(store.files.path(n)) < before_us]
    files = tuple(sorted(set(old) - named_files(connection).keys()))
    folders = tuple(
        folder
        for folder in sorted(_run_folders(store))
        if not _has_run(connection, folder) and _touched_us(folder) < before_us
    )
    leftovers = tuple(sorted(p for p in store.files.leftovers() if _touched_us(p) < before_us))
    paths = [*(store.files.path(name) for name in files), *folders, *leftovers]
    return KeptGarbage(files, folders, leftovers, sum(_size(path) for path in paths))


def remove_kept(
    store: Store, connection: sqlite3.Connection, garbage: KeptGarbage, before_us: Microseconds
) -> list[int]:
    """Remove it as far as it still is garbage; the bytes of each thing that went."""
    gone = []
    for name in garbage.files:
        with writing(connection):  # so that no row can come meanwhile
            if not is_named(connection, name):
                gone.append(_discard(store.files.path(name), before_us))
    for folder in garbage.folders:
        with writing(connection):
            if not _has_run(connection, folder):
                gone.append(_discard(folder, before_us))
    gone += [_discard(path, before_us) for path in garbage.leftovers]
    return [size for size in gone if size is not None]


def _discard(path: Path, before_us: Microseconds) -> int | None:
    """Remove a file or folder; its bytes, or None where it stays or is gone already."""
    aside = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    if _touched_us(aside) >= before_us:
        aside.rename(path)
        return None
    size = _size(aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
    return size


def _run_folders(store: Store) -> Iterator[Path]:
    """Folders that are named by a run's uuid, and what a killed gc moved aside."""
    if store.run_folders.is_dir():
        for path in store.run_folders.iterdir():
            aside = path.name.startswith(".") and path.name.endswith(".tmp")
            if path.is_dir() and not path.is_symlink() and (aside or _is_uuid(path.name)):
                yield path


def _is_uuid(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(text)) == text
    return False


def _has_run(connection: sqlite3.Connection, folder: Path) -> bool:
    query = "SELECT 1 FROM run WHERE uuid = ?"
    return connection.execute(query, (folder.name,)).fetchone() is not None


def _touched_us(path: Path) -> Microseconds:
    """When a file, or anything in a folder, was last touched; long ago if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        own = path.lstat().st_mtime_ns // 1000
        return max([own, *(_touched_us(inner) for inner in _inside(path))])
    return 0


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        inner = list(_inside(path))
        return sum(map(_size, inner)) if inner else path.lstat().st_size
    return 0


def _inside(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from path.iterdir()
