"""The safetensors file format, read strictly and written plainly, without torch or NumPy.

Layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes. Reading
accepts what the safetensors library (0.8) accepts and nothing else, as tests against it hold:
every byte of the data belongs to one tensor, shapes and offsets agree, the header is at most
100,000,000 bytes of strict JSON. What the library takes but no torch tensor could hold stays
refused: 6-bit dtypes, and 4-bit values that do not fill whole bytes of a row; so do entries
spelled as JSON arrays, which no writer writes.
A header counts 4-bit values where torch counts packed bytes, so the last dimension of F4 is
halved on reading.

Files are read, not mapped, so that network file systems and truncation cannot kill the process.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from kclab.core.digest import DTYPES, DTYPES_BY_CODE
from kclab.core.errors import BadUsage, BlobAbsent, BlobDamaged

HEADER_LIMIT = 100_000_000
"""Bytes; the safetensors library's own limit."""

COUNT_LIMIT = 2**64
"""The library counts elements and bits in 64 bits and refuses what overflows."""

LFS_PREFIX = b"version https://git-lfs.github.com/spec/"
TENSOR_KEY = "tensor"
"""The key of the one tensor in kclab's own blobs."""

METADATA_KEY = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")


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


@lru_cache(maxsize=4096)
def encode_header(dtype: str, shape: tuple[int, ...], nbytes: int, key: str = TENSOR_KEY) -> bytes:
    """The bytes that precede a single tensor's data in a file.

    Raises BadUsage for packed values without a dimension to pack, which the format cannot say.
    """
    kind = DTYPES[dtype]
    stored = list(shape)
    if kind.packing > 1:
        if not stored:
            raise BadUsage(f"a 0-d tensor of {dtype} cannot be stored: it has no row to pack.")
        stored[-1] *= kind.packing
    entry = {"dtype": kind.code, "shape": stored, "data_offsets": [0, nbytes]}
    text = json.dumps({key: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_slots(
    file: BinaryIO | FileIO, path: Path | str, *, trailing: int = 0
) -> dict[str, TensorSlot]:
    """Parse and check the header of an open file, leaving it positioned at the data.

    Up to `trailing` bytes may follow the payload: published checkpoints have been seen to end so.
    Raises BlobDamaged, naming `path`, or BlobAbsent when it is a Git LFS pointer.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise BlobDamaged(f"{path} is not a regular file.")
    size = status.st_size
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
    slots = _slots(file.read(length), 8 + length, path)
    expected = 8 + length + sum(slot.nbytes for slot in slots.values())
    if not expected <= size <= expected + trailing:
        raise BlobDamaged(f"damaged blob {path}: {size} of {expected} bytes.")
    return slots


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys were said twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.said = [key for key, _ in pairs]

    def require_once(self, *keys: str) -> None:
        """Refuse a repeated key, since readers differ in which of the two counts."""
        for key in keys:
            if len(self.said) != len(self) and self.said.count(key) > 1:
                raise ValueError(f"{key} stands twice")


def _whole(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_whole, parse_float=_real, parse_constant=_no_constant
)


def _slots(text: bytes, start: int, path: Path | str) -> dict[str, TensorSlot]:
    try:
        entries = _entries(text)
        slots: dict[str, TensorSlot] = {}
        position = 0
        for begin, end, key, entry in sorted(entries, key=lambda item: item[:2]):
            if begin != position or end < begin:
                raise ValueError(f"tensor {key!r} leaves a hole or overlaps")
            slots[key] = _slot(key, entry, start + begin, end - begin)
            position = end
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BlobDamaged(f"damaged blob {path}: its header is wrong ({error}).") from error
    return slots


def _entries(text: bytes) -> list[tuple[int, int, str, _Object]]:
    """(begin, end, key, entry) of each tensor that a header names, in its order."""
    written = text.decode("utf-8")
    header = _DECODER.decode(written)
    if "\\u" in written:
        # Half a surrogate pair, which json lets pass, cannot be encoded again.
        json.dumps(header, ensure_ascii=False).encode("utf-8")
    if not isinstance(header, _Object):
        raise ValueError("not an object")
    header.require_once(METADATA_KEY)
    _check_metadata(header.pop(METADATA_KEY, None))
    return [(*_span(key, entry), key, entry) for key, entry in header.items()]


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, _Object):
        raise ValueError(f"{METADATA_KEY} is not an object")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{METADATA_KEY} holds something else than text")


def _span(key: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, _Object):
        raise ValueError(f"tensor {key!r} is not an object")
    entry.require_once(*FIELDS)
    offsets = entry["data_offsets"]
    if not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {key!r}: data_offsets are not two whole numbers")
    return offsets[0], offsets[1]


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < COUNT_LIMIT for value in values
    )


def _slot(key: str, entry: _Object, begin: int, nbytes: int) -> TensorSlot:
    code, shape = entry["dtype"], entry["shape"]
    kind = DTYPES_BY_CODE.get(code) if isinstance(code, str) else None
    if kind is None:
        raise ValueError(f"tensor {key!r} has dtype {code!r}, unknown here")
    if not _counts(shape):
        raise ValueError(f"tensor {key!r} has shape {shape!r}")
    if _elements(shape) * kind.itemsize != nbytes * kind.packing:
        raise ValueError(
            f"tensor {key!r} of shape {shape} and dtype {kind.code} does not fit its {nbytes} bytes"
        )
    if kind.packing == 1:
        return TensorSlot(kind.name, tuple(shape), begin, nbytes)
    if not shape or shape[-1] % kind.packing:
        raise ValueError(f"tensor {key!r} packs an odd number of values into its rows")
    return TensorSlot(kind.name, (*shape[:-1], shape[-1] // kind.packing), begin, nbytes)


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for dimension in shape:
        count *= dimension
        if count * 64 >= COUNT_LIMIT * 64:
            raise ValueError(f"shape {list(shape)} overflows")
    return count
