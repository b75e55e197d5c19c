"""The `blob/` folder: one file a tensor, named by its digest, `ab/cdef….safetensors`.

A file appears under its final name only whole: it is written to a unique temporary in `blob/tmp`,
renamed, and its file system is synced before any row may name it. A file that no row vouches for
is therefore never trusted by its name: `BlobBatch` re-hashes it before it takes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kclab.blob.safetensors_file import TENSOR_KEY, TensorSlot, encode_header, read_slots
from kclab.core.digest import digest_header, tensor_digest
from kclab.core.errors import BlobAbsent, BlobDamaged

SUFFIX = ".safetensors"
CHUNK = 1 << 20


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
        """A blob's bytes, checked for length but not re-hashed (see `verify`)."""
        path = self.path(sha256)
        try:
            return read_tensor(path, TENSOR_KEY)
        except FileNotFoundError:
            raise BlobAbsent(
                f"blob {sha256[:12]}…: no file {path}; import its source again."
            ) from None

    def verify(self, sha256: str) -> TensorSlot:
        """Re-hash a blob; raises BlobDamaged or BlobAbsent."""
        path = self.path(sha256)
        try:
            slot, found = hash_tensor(path, TENSOR_KEY)
        except FileNotFoundError:
            raise BlobAbsent(
                f"blob {sha256[:12]}…: no file {path}; import its source again."
            ) from None
        if found != sha256:
            raise BlobDamaged(
                f"damaged blob {path}: its content has digest {found[:12]}…; "
                "re-import it with kclab import PATH --repair."
            )
        return slot

    def present(self) -> Iterator[str]:
        """The digests that files are named by, in no order."""
        if not self.root.is_dir():
            return
        for folder in self.root.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for file in folder.iterdir():
                if file.name.endswith(SUFFIX):
                    yield folder.name + file.name.removesuffix(SUFFIX)

    def leftovers(self) -> Iterator[Path]:
        """Temporary files that a killed process left behind."""
        temporary = self.root / "tmp"
        if temporary.is_dir():
            yield from temporary.iterdir()

    def batch(self) -> BlobBatch:
        """Collect new blobs and make them durable together."""
        return BlobBatch(self)


def read_tensor(path: Path, key: str) -> TensorBytes:
    """One tensor of a safetensors file, by plain reading."""
    with _opened(path) as file:
        slot = _slot(read_slots(file, path), key, path)
        file.seek(slot.begin)
        data = bytearray(slot.nbytes)
        if file.readinto(data) != slot.nbytes:
            raise BlobDamaged(f"damaged blob {path}: shrank while it was read.")
    return TensorBytes(slot.dtype, slot.shape, data)


def hash_tensor(path: Path, key: str) -> tuple[TensorSlot, str]:
    """(slot, digest) of one tensor of a file, in constant memory."""
    with _opened(path) as file:
        slot = _slot(read_slots(file, path), key, path)
        file.seek(slot.begin)
        hasher = hashlib.sha256(digest_header(slot.dtype, slot.shape))
        left = slot.nbytes
        buffer = memoryview(bytearray(min(CHUNK, left)))
        while left:
            count = file.readinto(buffer[: min(left, CHUNK)])
            if not count:
                raise BlobDamaged(f"damaged blob {path}: shrank while it was read.")
            hasher.update(buffer[:count])
            left -= count
    return slot, hasher.hexdigest()


def _opened(path: Path) -> Any:
    try:
        return path.open("rb", buffering=0)
    except IsADirectoryError:
        raise BlobDamaged(f"{path} is a folder, not a blob.") from None


def _slot(slots: dict[str, TensorSlot], key: str, path: Path) -> TensorSlot:
    if key not in slots:
        raise BlobDamaged(f"{path}: no tensor {key!r}, only {sorted(slots)}.")
    return slots[key]


@dataclass(slots=True)
class BlobBatch:
    """New blobs that become durable together: add them, `sync`, then commit their rows."""

    folder: BlobFolder
    _changed: bool = field(default=False)
    _made: set[Path] = field(default_factory=set)

    def add(self, dtype: str, shape: Sequence[int], data: Any, sha256: str | None = None) -> str:
        """Write a tensor's bytes under its digest unless they are there; returns the digest.

        A file of that name that holds anything else is replaced.
        """
        digest = sha256 or tensor_digest(dtype, shape, data)
        target = self.folder.path(digest)
        if self.holds(digest):
            return digest
        nbytes = memoryview(data).nbytes
        temporary = self.temporary()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            write_all(descriptor, encode_header(dtype, tuple(shape), nbytes))
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        self.place(temporary, target)
        return digest

    def holds(self, sha256: str) -> bool:
        """Whether the digest's file is there with the right content (it is re-hashed)."""
        try:
            self.folder.verify(sha256)
        except (BlobAbsent, BlobDamaged):
            return False
        return True

    def temporary(self) -> Path:
        """A fresh name in `blob/tmp`."""
        folder = self.folder.root / "tmp"
        self._make(folder)
        return folder / f"{os.getpid()}-{uuid.uuid4().hex}{SUFFIX}"

    def place(self, temporary: Path, target: Path) -> None:
        """Rename a finished temporary to its final name."""
        self._make(target.parent)
        temporary.replace(target)
        self._changed = True

    def sync(self) -> None:
        """Make everything added so far durable; call it before the rows are committed."""
        if self._changed:
            sync_file_system(self.folder.root)
            self._changed = False

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)


def write_all(descriptor: int, data: Any) -> None:
    """`os.write` until everything is written (one call may take less, or at most 2 GiB)."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(descriptor, view) :]


def sync_file_system(folder: Path) -> None:
    """Flush the file system that holds `folder` (syncfs), or everything where there is none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(AttributeError, OSError):
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) == 0:
                return
        os.sync()
    finally:
        os.close(descriptor)
