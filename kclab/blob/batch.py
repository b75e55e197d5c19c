"""Writing blobs: many at once, whole or not at all, durable before their rows are committed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kclab.blob.folder import SUFFIX, TEMPORARY_FOLDER, BlobFolder
from kclab.blob.safetensors_file import encode_header
from kclab.core.digest import tensor_digest
from kclab.core.errors import BlobAbsent, BlobDamaged

FEW = 8
"""Up to so many new files are synced one by one; beyond, syncing the file system is cheaper,
though it also waits for what others have written there."""

YOUNG_SECONDS = 30
"""A file changed this recently need not be made young again."""

_numbers = itertools.count()


class BlobBatch:
    """New blobs that become durable together: add them, `sync`, then commit their rows."""

    def __init__(self, folder: BlobFolder) -> None:
        self.folder = folder
        self._root = str(folder.root)
        self._token = os.urandom(8).hex()
        self._made: set[str] = set()
        self._unsynced: list[str] = []

    def add(
        self,
        dtype: str,
        shape: Sequence[int],
        data: Any,
        sha256: str | None = None,
        *,
        known: bool = False,
    ) -> str:
        """Write a tensor's bytes under its digest unless they are there; returns the digest.

        `data` is a contiguous buffer. A file of that name is re-hashed and replaced if it holds
        anything else; with `known`, a row in the database vouches for it, and its size suffices.
        Commit its row (again) soon: a clean-up leaves alone what was added in the last minutes.
        """
        digest = sha256 or tensor_digest(dtype, shape, data)
        header = encode_header(dtype, tuple(shape), memoryview(data).nbytes)
        target = f"{self._root}/{digest[:2]}/{digest[2:]}{SUFFIX}"
        if known and _vouched(target, len(header) + memoryview(data).nbytes):
            return digest
        if self.holds(digest):
            return digest
        temporary = self._fresh()
        _write(temporary, header, data)
        self._rename(temporary, target)
        return digest

    def holds(self, sha256: str) -> bool:
        """Whether the digest's file is there with the right content; it is re-hashed.

        One that is there is made young, so that no clean-up takes it before its row comes, and
        is synced with the batch, since whoever wrote it may not have come to that yet.
        """
        path = f"{self._root}/{sha256[:2]}/{sha256[2:]}{SUFFIX}"
        try:
            os.utime(path, follow_symlinks=False)
            self.folder.verify(sha256)
        except (OSError, BlobAbsent, BlobDamaged):
            return False
        self._unsynced.append(path)
        return True

    def temporary(self) -> Path:
        """A name in `blob/tmp` that no other process or thread has."""
        return Path(self._fresh())

    def _fresh(self) -> str:
        folder = f"{self._root}/{TEMPORARY_FOLDER}"
        self._make(folder)
        # The token tells apart equal pids of two containers that share a volume.
        return f"{folder}/{os.getpid()}-{self._token}-{next(_numbers)}{SUFFIX}"

    def place(self, temporary: Path | str, target: Path | str) -> None:
        """Rename a finished temporary to its final name."""
        self._rename(str(temporary), str(target))

    def _rename(self, temporary: str, target: str) -> None:
        self._make(target.rpartition("/")[0])
        os.replace(temporary, target)
        self._unsynced.append(target)

    def create(self, sha256: str, header: bytes, data: Any) -> None:
        """Write verified bytes straight under their name, in half the time that a rename costs.

        What lies there already, torn by a crash or whole, is replaced by a rename.
        """
        target = f"{self._root}/{sha256[:2]}/{sha256[2:]}{SUFFIX}"
        self._make(target.rpartition("/")[0])
        try:
            _write(target, header, data)
        except FileExistsError:
            temporary = self._fresh()
            _write(temporary, header, data)
            os.replace(temporary, target)
        self._unsynced.append(target)

    def sync(self) -> None:
        """Make everything added so far durable; call it before the rows are committed.

        Raises OSError where the disk refuses.
        """
        if not self._unsynced:
            return
        if len(self._unsynced) > FEW:
            sync_file_system(self.folder.root)
        else:
            folders = {path.rpartition("/")[0] for path in self._unsynced}
            for path in (*self._unsynced, *sorted(folders), self._root):
                _sync_path(path)
        self._unsynced.clear()

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)


def _vouched(path: str, size: int) -> bool:
    """Whether a known blob's file is there with its size; it is made young, see `holds`."""
    try:
        status = os.stat(path, follow_symlinks=False)
        if status.st_size == size and status.st_mtime < time.time() - YOUNG_SECONDS:
            os.utime(path, follow_symlinks=False)
    except OSError:
        return False
    return status.st_size == size


def _write(path: str, header: bytes, data: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, header, data)
    except OSError:
        os.unlink(path)  # not whole, so nobody can have verified it meanwhile
        raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, *buffers: Any) -> None:
    """Write buffers one after another, whole (one call may take less, and at most 2 GiB)."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
    while views:
        written = os.writev(descriptor, views)
        while views and written >= views[0].nbytes:
            written -= views[0].nbytes
            del views[0]
        if views:
            views[0] = views[0][written:]


def _sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> None:
    """Flush the file system that holds `folder` (syncfs), or everything where there is none.

    Raises OSError where a write could not reach the disk.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(AttributeError):
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) == 0:
                return
            number = ctypes.get_errno()
            if number != errno.ENOSYS:
                raise OSError(number, os.strerror(number), str(folder))
        os.sync()
    finally:
        os.close(descriptor)
