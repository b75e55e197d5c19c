"""The safetensors file format, read strictly and written plainly, without torch or NumPy.

Layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes. Reading
accepts exactly what the safetensors library (0.8) accepts: every byte of the data belongs to one
tensor, shapes and offsets agree, the header is at most 100,000,000 bytes. A header counts 4-bit
values where torch counts packed bytes, so the last dimension of F4 is halved on reading.
Files are read, not mapped, so that network file systems and truncation cannot kill the process.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kclab.core.digest import DTYPES, DTYPES_BY_CODE, element_count
from kclab.core.errors import BlobAbsent, BlobDamaged

HEADER_LIMIT = 100_000_000
"""Bytes; the safetensors library's own limit."""

LFS_PREFIX = b"version https://git-lfs.github.com/spec/"
TENSOR_KEY = "tensor"
"""The key of the one tensor in kclab's own blobs."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where one tensor lies in a file."""

    dtype: str
    """torch name, as `bfloat16`."""
    shape: tuple[int, ...]
    """torch dimensions."""
    begin: int
    """First byte, counted from the start of the file."""
    nbytes: int


def encode_header(dtype: str, shape: tuple[int, ...], nbytes: int, key: str = TENSOR_KEY) -> bytes:
    """The bytes that precede a single tensor's data in a file."""
    kind = DTYPES[dtype]
    stored = list(shape)
    if kind.packing > 1 and stored:
        stored[-1] *= kind.packing
    entry = {"dtype": kind.code, "shape": stored, "data_offsets": [0, nbytes]}
    text = json.dumps({key: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_slots(file: BinaryIO, path: Path) -> dict[str, TensorSlot]:
    """Parse and check the header of an open file, leaving it positioned at the data.

    Raises BlobDamaged, naming `path`, or BlobAbsent when it is a Git LFS pointer.
    """
    size = os.fstat(file.fileno()).st_size
    lead = file.read(8)
    if lead and LFS_PREFIX.startswith(lead):
        raise BlobAbsent(
            f"{path}: a Git LFS pointer, its bytes were not fetched; run git lfs pull."
        )
    if len(lead) < 8:
        raise BlobDamaged(f"damaged blob {path}: {size} bytes, too short for a header.")
    (length,) = struct.unpack("<Q", lead)
    if length > HEADER_LIMIT:
        raise BlobDamaged(f"damaged blob {path}: claims a header of {length} bytes.")
    if 8 + length > size:
        raise BlobDamaged(f"damaged blob {path}: {size} of at least {8 + length} bytes.")
    slots = _parse(file.read(length), 8 + length, path)
    expected = 8 + length + sum(slot.nbytes for slot in slots.values())
    if size != expected:
        raise BlobDamaged(f"damaged blob {path}: {size} of {expected} bytes.")
    return slots


def _parse(text: bytes, start: int, path: Path) -> dict[str, TensorSlot]:
    try:
        header = json.loads(text)
        items = [(k, v) for k, v in header.items() if k != "__metadata__"]
        spans = sorted(
            ((*_span(entry), key, entry) for key, entry in items), key=lambda span: span[:2]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BlobDamaged(f"damaged blob {path}: unreadable header ({error}).") from error
    slots: dict[str, TensorSlot] = {}
    position = 0
    for begin, end, key, entry in spans:
        if begin != position or end < begin:
            raise BlobDamaged(f"damaged blob {path}: tensor {key!r} leaves a hole or overlaps.")
        slots[key] = _slot(key, entry, start + begin, end - begin, path)
        position = end
    return slots


def _span(entry: Any) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int or begin < 0:
        raise ValueError("data_offsets are not two whole numbers")
    return begin, end


def _slot(key: str, entry: Any, begin: int, nbytes: int, path: Path) -> TensorSlot:
    kind = DTYPES_BY_CODE.get(entry.get("dtype"))
    shape = entry.get("shape")
    if kind is None:
        raise BlobDamaged(f"{path}: tensor {key!r} has dtype {entry.get('dtype')!r}, unknown here.")
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise BlobDamaged(f"damaged blob {path}: tensor {key!r} has shape {shape!r}.")
    if kind.packing > 1 and (not shape or shape[-1] % kind.packing):
        raise BlobDamaged(f"damaged blob {path}: tensor {key!r} packs an odd number of values.")
    torch_shape = (*shape[:-1], shape[-1] // kind.packing) if kind.packing > 1 else tuple(shape)
    if element_count(torch_shape) * kind.itemsize != nbytes:
        raise BlobDamaged(
            f"damaged blob {path}: tensor {key!r} of shape {shape} and dtype {kind.code} "
            f"does not fit its {nbytes} bytes."
        )
    return TensorSlot(kind.name, torch_shape, begin, nbytes)
