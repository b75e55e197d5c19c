"""One foreign safetensors file, open: which tensors it has, their digests, and copies of them.

A file is opened without following a link in its last part, and must be a plain file. Up to `SMALL`
bytes it is read whole; a larger one is read in pieces, so that memory stays flat.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kclab.blob.batch import write_all
from kclab.blob.safetensors_file import (
    TENSOR_KEY,
    TensorSlot,
    encode_header,
    read_slots,
)
from kclab.core.digest import digest_header
from kclab.core.errors import BlobAbsent, BlobDamaged

SMALL = 256 << 10
"""Bytes up to which a file is read whole."""
HEADERS_KEPT = 4096
CHUNK = 1 << 20
FICLONE = 0x40049409
"""Linux ioctl: share a file's extents, where the file system can."""
SYNC_WRITE = 2
"""Linux SYNC_FILE_RANGE_WRITE: start, and do not wait."""
PICKLE_LEADS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How torch.save's archives and plain pickles begin; no safetensors header is that long."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of an open file."""

    slot: TensorSlot
    whole_file: bool
    """The file is exactly what a store would write for it, but for metadata."""


@dataclass(frozen=True, slots=True)
class NotFetched:
    """A Git LFS pointer in the file's place."""

    oid: str
    """sha256 of the file that it stands for."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a tensor cannot be taken, in one sentence."""

    reason: str
    unsafe: bool = False
    """A pickle, or a link."""


class SourceFile:
    """An open foreign file; a context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.data: bytes | None = None
        """The whole content of a small file."""
        self._descriptor = -1
        self._problem: NotFetched | Failed | None = None
        self._slots: dict[str, TensorSlot] | None = None

    def __enter__(self) -> SourceFile:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self._problem = _cannot_open(self.path, error)
            return self
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self._problem = Failed(f"{self.path} is no plain file.", unsafe=True)
        elif self.size <= SMALL:
            self.data = os.read(self._descriptor, self.size + 1)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def tensor(self, key: str) -> Tensor | NotFetched | Failed:
        """The tensor called `key`, or why it cannot be had."""
        if self._problem is None and self._slots is None:
            self._read_header()
        if self._problem is not None:
            return self._problem
        slots = self._slots or {}
        if key not in slots:
            return Failed(f"{self.path} has no tensor {key!r}, only {', '.join(sorted(slots))}.")
        return Tensor(slots[key], len(slots) == 1 and key == TENSOR_KEY)

    def _read_header(self) -> None:
        try:
            self._slots = self._known() or self._parse()
        except BlobAbsent:
            self._problem = NotFetched(_lfs_oid(self.data or b""))
        except BlobDamaged as error:
            self._problem = self._explain(error)

    def _known(self) -> dict[str, TensorSlot] | None:
        """The slots of a small file whose header another file had; equal tensors' headers are."""
        known = _HEADERS.get(self._head())
        return known[0] if known is not None and known[1] == self.size else None

    def _head(self) -> bytes:
        data = self.data or b""
        return data[: 8 + struct.unpack("<Q", data[:8])[0]] if len(data) > 8 else b""

    def _parse(self) -> dict[str, TensorSlot]:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._descriptor), "rb", buffering=0) as file:
            slots = read_slots(file, Path(self.path))
        if self.data is not None and len(_HEADERS) < HEADERS_KEPT:
            _HEADERS[self._head()] = (slots, self.size)
        return slots

    def _explain(self, error: BlobDamaged) -> Failed:
        lead = os.pread(self._descriptor, 8, 0)
        if lead.startswith(PICKLE_LEADS):
            return Failed(f"{self.path} is a pickle, which runs code when it is loaded.", True)
        return Failed(str(error))

    def digest(self, tensor: Tensor, buffer: bytearray, target: str | None) -> str | None:
        """The tensor's sha256; also writes it to the new file `target`. None: the file shrank."""
        slot = tensor.slot
        hasher = hashlib.sha256(_digest_header(slot.dtype, slot.shape))
        if self.data is not None:
            hasher.update(memoryview(self.data)[slot.begin : slot.begin + slot.nbytes])
            return hasher.hexdigest()
        output = -1 if target is None else _create(target)
        try:
            if output >= 0:
                write_all(output, encode_header(slot.dtype, slot.shape, slot.nbytes))
            whole = self._stream(slot, hasher, buffer, output)
            if output >= 0:
                _start_writing_back(output)
            return hasher.hexdigest() if whole else None
        finally:
            if output >= 0:
                os.close(output)

    def _stream(self, slot: TensorSlot, hasher: Any, buffer: bytearray, output: int) -> bool:
        view = memoryview(buffer)
        position, end = slot.begin, slot.begin + slot.nbytes
        while position < end:
            count = os.preadv(
                self._descriptor, [view[: min(len(buffer), end - position)]], position
            )
            if count == 0:
                return False
            hasher.update(view[:count])
            if output >= 0:
                write_all(output, view[:count])
            position += count
        return True

    def content(self, tensor: Tensor) -> tuple[bytes, memoryview]:
        """A small file's tensor as a store writes it: (kclab's own header, bytes)."""
        slot, data = tensor.slot, memoryview(self.data or b"")
        head = _encoded(slot.dtype, slot.shape, slot.nbytes)
        return head, data[slot.begin : slot.begin + slot.nbytes]

    def write(self, tensor: Tensor, target: str) -> None:
        """Write a small file's tensor to the new file `target`."""
        output = _create(target)
        try:
            write_all(output, *self.content(tensor))
        finally:
            os.close(output)

    def link(self, target: str) -> bool:
        """Hard-link the whole file to `target`; False where that cannot be."""
        try:
            os.link(self.path, target, follow_symlinks=False)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            # A link keeps the file's age, and a clean-up takes old files that have no row yet.
            os.utime(target, follow_symlinks=False)
        return True

    def clone(self, target: str) -> bool:
        """Share the whole file's extents with a new file `target`; False where that cannot be."""
        if os.fstat(self._descriptor).st_dev in _NO_CLONES:
            return False
        output = _create(target)
        try:
            fcntl.ioctl(output, FICLONE, self._descriptor)
        except OSError:
            _NO_CLONES.add(os.fstat(self._descriptor).st_dev)
            os.unlink(target)  # noqa: PTH108
            return False
        finally:
            os.close(output)
        return True


_HEADERS: dict[bytes, tuple[dict[str, TensorSlot], int]] = {}
"""Checked headers of small files, each with the file size that it needs."""
_NO_CLONES: set[int] = set()
"""Devices whose file system refused a clone in this process."""


def _start_writing_back(descriptor: int) -> None:
    """Let the kernel begin to write a file to disk now, so that the one sync later is short."""
    with contextlib.suppress(AttributeError, OSError):
        _libc().sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), SYNC_WRITE)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _cannot_open(path: str, error: OSError) -> Failed:
    if isinstance(error, FileNotFoundError):
        return Failed(f"{path}: no such file.")
    linked = os.path.islink(path)  # noqa: PTH114
    return Failed(f"{path}: {'a symbolic link' if linked else error.strerror}.", unsafe=linked)


@lru_cache(maxsize=HEADERS_KEPT)
def _digest_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    return digest_header(dtype, shape)


@lru_cache(maxsize=HEADERS_KEPT)
def _encoded(dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    return encode_header(dtype, shape, nbytes)


def _lfs_oid(data: bytes) -> str:
    for line in data.split(b"\n"):
        if line.startswith(b"oid sha256:"):
            return line[len(b"oid sha256:") :].decode("ascii", "replace").strip()
    return hashlib.sha256(data).hexdigest()
