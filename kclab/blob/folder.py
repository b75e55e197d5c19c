"""The `blob/` folder: one file a tensor, named by its digest, `ab/cdef….safetensors`.

A file is synced before any row may name it, and from then on never written to. One that no row
vouches for is never trusted by its name: a crash may have torn it, so whoever needs it re-hashes
it, and replaces a torn one by a rename. What is not verified yet waits in `blob/tmp` (see
`kclab.blob.batch`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclab.blob.safetensors_file import TENSOR_KEY, TensorSlot, read_slots
from kclab.core.digest import digest_header
from kclab.core.errors import BlobAbsent, BlobDamaged

if TYPE_CHECKING:
    from kclab.blob.batch import BlobBatch

SUFFIX = ".safetensors"
TEMPORARY_FOLDER = "tmp"
CHUNK = 1 << 20
"""Bytes hashed at once: enough to let other threads run, little enough to stay in the cache."""

_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")
_FILE_NAME = re.compile(rf"[0-9a-f]{{62}}{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor as its elements' bytes, row-major, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    """A contiguous buffer."""


@dataclass(frozen=True, slots=True)
class BlobFolder:
    """Where a store keeps tensors."""

    root: Path

    def path(self, sha256: str) -> Path:
        """The file of a digest, whether or not it exists."""
        return self.root / sha256[:2] / f"{sha256[2:]}{SUFFIX}"

    def read(self, sha256: str) -> TensorBytes:
        """A blob's bytes, checked for length but not re-hashed (see `verify`).

        Raises BlobDamaged or BlobAbsent.
        """
        try:
            return read_tensor(self.path(sha256), TENSOR_KEY)
        except FileNotFoundError:
            raise self._absent(sha256) from None

    def verify(self, sha256: str) -> TensorSlot:
        """Re-hash a blob; raises BlobDamaged or BlobAbsent."""
        path = self.path(sha256)
        try:
            slot, found = hash_tensor(path, TENSOR_KEY)
        except FileNotFoundError:
            raise self._absent(sha256) from None
        if found != sha256:
            raise BlobDamaged(
                f"damaged blob {path}: its content has digest {found[:12]}…; "
                "re-import it with kclab import PATH --repair."
            )
        return slot

    def _absent(self, sha256: str) -> BlobAbsent:
        path = self.path(sha256)
        return BlobAbsent(f"blob {sha256[:12]}…: no file {path}; import its source again.")

    def present(self) -> Iterator[str]:
        """The digests that files are named by, in no order."""
        for entry in self._entries():
            if _is_blob(entry):
                yield Path(entry.path).parent.name + entry.name.removesuffix(SUFFIX)

    def leftovers(self) -> Iterator[Path]:
        """What killed processes left: everything in `blob/tmp`, and `*.tmp` beside the blobs."""
        temporary = self.root / TEMPORARY_FOLDER
        if temporary.is_dir():
            yield from temporary.iterdir()
        for entry in self._entries():
            if not _is_blob(entry) and entry.name.endswith(".tmp"):
                yield Path(entry.path)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """All that lies in the two-digit folders."""
        if not self.root.is_dir():
            return
        for folder in self.root.iterdir():
            if _FOLDER_NAME.fullmatch(folder.name) and folder.is_dir():
                with os.scandir(folder) as entries:
                    yield from entries

    def batch(self) -> BlobBatch:
        """Collect new blobs and make them durable together."""
        from kclab.blob.batch import BlobBatch

        return BlobBatch(self)


def _is_blob(entry: os.DirEntry[str]) -> bool:
    return _FILE_NAME.fullmatch(entry.name) is not None


def read_tensor(path: Path | str, key: str) -> TensorBytes:
    """One tensor of a safetensors file, by plain reading. Raises BlobDamaged or BlobAbsent."""
    with open_blob(path) as file:
        slot = _slot(read_slots(file, path), key, path)
        file.seek(slot.begin)
        data = bytearray(slot.nbytes)
        _fill(file, memoryview(data), path)
    return TensorBytes(slot.dtype, slot.shape, data)


def hash_tensor(path: Path | str, key: str) -> tuple[TensorSlot, str]:
    """(slot, digest) of one tensor of a file, in constant memory.

    Raises BlobDamaged or BlobAbsent.
    """
    with open_blob(path) as file:
        slot = _slot(read_slots(file, path), key, path)
        file.seek(slot.begin)
        hasher = hashlib.sha256(digest_header(slot.dtype, slot.shape))
        buffer = memoryview(bytearray(min(CHUNK, slot.nbytes)))
        for begin in range(0, slot.nbytes, CHUNK):
            part = buffer[: min(CHUNK, slot.nbytes - begin)]
            _fill(file, part, path)
            hasher.update(part)
    return slot, hasher.hexdigest()


def open_blob(path: Path | str) -> FileIO:
    """Open a tensor's file for plain, unbuffered reading.

    A folder, a device or a symbolic link is no blob, and opening it neither follows nor hangs.
    Raises FileNotFoundError, or BlobDamaged where the file cannot be read.
    """
    try:
        return open(path, "rb", buffering=0, opener=_open_plain)
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise BlobDamaged(f"{path} is a folder, not a blob.") from None
    except OSError as error:
        if Path(path).is_symlink():
            raise BlobDamaged(f"{path} is a symbolic link, not a blob.") from None
        raise BlobDamaged(f"{path}: cannot be read ({error.strerror}).") from error


def _open_plain(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _fill(file: FileIO, buffer: memoryview, path: Path | str) -> None:
    """Read until `buffer` is full; one read gives at most 2 GiB."""
    while buffer:
        try:
            count = file.readinto(buffer)
        except OSError as error:
            raise BlobDamaged(f"{path}: cannot be read ({error.strerror}).") from error
        if not count:
            raise BlobDamaged(f"damaged blob {path}: shrank while it was read.")
        buffer = buffer[count:]


def _slot(slots: dict[str, TensorSlot], key: str, path: Path | str) -> TensorSlot:
    if key not in slots:
        raise BlobDamaged(f"{path}: no tensor {key!r}, only {sorted(slots)}.")
    return slots[key]
