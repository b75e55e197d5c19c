"""Files that a store keeps besides tensors, by content: `files/ab/cdef….png`.

A file appears under its name only whole and durable. Whoever keeps bytes makes their file young,
also where it was there before, so that nothing removes it before a row names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kclab.blob.folder import CHUNK, open_blob
from kclab.core.errors import BlobAbsent, BlobDamaged

FOLDER = "files"

_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")
_FILE_NAME = re.compile(r"([0-9a-f]{62})(\.[a-z0-9]{1,8})")
_PLACE = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/{_FILE_NAME.pattern}")


@dataclass(frozen=True, slots=True, order=True)
class KeptName:
    """What a kept file is called."""

    sha256: str
    """Of its bytes."""
    suffix: str
    """`.png`."""

    @classmethod
    def parse(cls, place: str) -> KeptName | None:
        """From a path within the store, `files/ab/cdef….png`; None for any other text."""
        found = _PLACE.fullmatch(place)
        return cls(found[1] + found[2], found[3]) if found else None

    def __str__(self) -> str:
        return f"{FOLDER}/{self.sha256[:2]}/{self.sha256[2:]}{self.suffix}"


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A store's `files/`."""

    root: Path

    def path(self, name: KeptName) -> Path:
        """Where the file lies, whether or not it exists."""
        return self.root.parent / str(name)

    def keep(self, data: bytes, suffix: str) -> KeptName:
        """Store bytes, whole and durable before this returns. Mode 0666 & ~umask.

        A file of that name with other bytes is replaced.
        """
        name = KeptName(hashlib.sha256(data).hexdigest(), suffix)
        path = self.path(name)
        if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
            os.utime(path)
            return name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            _write(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return name

    def verify(self, name: KeptName) -> int:
        """Re-hash a file, in constant memory; its size. Raises BlobDamaged or BlobAbsent."""
        return verify_file(self.path(name), name.sha256)

    def present(self) -> Iterator[KeptName]:
        """What is here, in no order."""
        for path in self._entries():
            if found := _FILE_NAME.fullmatch(path.name):
                yield KeptName(path.parent.name + found[1], found[2])

    def leftovers(self) -> Iterator[Path]:
        """What killed processes left."""
        return (path for path in self._entries() if path.name.endswith(".tmp"))

    def _entries(self) -> Iterator[Path]:
        if self.root.is_dir():
            for folder in self.root.iterdir():
                if _FOLDER_NAME.fullmatch(folder.name) and folder.is_dir():
                    yield from folder.iterdir()


def verify_file(path: Path, sha256: str) -> int:
    """Re-hash any plain file; its size. Raises BlobDamaged or BlobAbsent, and follows no link."""
    try:
        file = open_blob(path)
    except FileNotFoundError:
        raise BlobAbsent(f"no file {path}; import its source again.") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BlobDamaged(f"{path} is no plain file.")
        hasher, size = hashlib.sha256(), 0
        while data := file.read(CHUNK):
            hasher.update(data)
            size += len(data)
    if hasher.hexdigest() != sha256:
        raise BlobDamaged(f"damaged file {path}: its content is not what its name says.")
    return size


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
