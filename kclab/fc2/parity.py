"""Whether two outputs are the same bytes, and how far apart they are when they are not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Elements compared at a time: bounds the float32 copies on the device."""


@dataclass(frozen=True, slots=True)
class Parity:
    """One output against the one it should equal."""

    exact: bool
    """Same dtype, shape and bytes: -0 differs from 0, and a NaN equals only its own bits."""
    elements: int
    different: int
    """Elements whose bytes differ; all of them where dtype or shape do."""
    max_abs: float | None
    """Over elements that are finite in both; None where there is none."""
    mean_abs: float | None
    actual_sha256: str
    """Of the bytes alone, row-major."""
    expected_sha256: str
    reason: str | None = None
    """Why numbers cannot be given: dtype, shape, or non-finite elements."""


def compare(actual: Tensor, expected: Tensor, expected_sha256: str | None = None) -> Parity:
    """Compare two tensors byte by byte.

    `expected_sha256` spares hashing a large expected output again and again.
    """
    known = expected_sha256 or output_sha256(expected)
    if same_bytes(actual, expected):
        return _equal(actual, known)
    hashes = output_sha256(actual), known
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        found = f"{actual.dtype} {list(actual.shape)} is not {expected.dtype} "
        found += f"{list(expected.shape)}"
        return Parity(False, actual.numel(), actual.numel(), None, None, *hashes, found)
    different, finite, largest, total = 0, 0, 0.0, 0.0
    for left, right in _chunks(actual, expected):
        different += int(_differs(left, right).sum())
        count, high, sum_abs = _distance(left, right)
        finite, total, largest = finite + count, total + sum_abs, max(largest, high)
    lost = actual.numel() - finite
    return Parity(
        exact=different == 0,
        elements=actual.numel(),
        different=different,
        max_abs=largest if finite else None,
        mean_abs=total / finite if finite else None,
        actual_sha256=hashes[0],
        expected_sha256=hashes[1],
        reason=f"{lost} elements are not finite" if lost else None,
    )


def _equal(actual: Tensor, sha256: str) -> Parity:
    finite = int(torch.isfinite(actual).sum())
    zero = 0.0 if finite else None
    lost = actual.numel() - finite
    reason = f"{lost} elements are not finite" if lost else None
    return Parity(True, actual.numel(), 0, zero, zero, sha256, sha256, reason)


def same_bytes(actual: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal byte by byte, without counting."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    pairs = _chunks(actual, expected)
    return all(torch.equal(_words(left), _words(right)) for left, right in pairs)


def output_sha256(tensor: Tensor) -> str:
    """sha256 of a tensor's bytes, row-major: what the seed's results call output_sha256."""
    plain = tensor.detach().contiguous().cpu().reshape(-1)
    hasher = hashlib.sha256()
    if plain.numel():
        hasher.update(plain.view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def output_class(tensor: Tensor) -> str:
    """A 64-bit checksum that depends on positions, computed where the tensor is.

    It sorts outputs into classes of equal bytes within one process; a winner's class is confirmed
    by its sha256.
    """
    words = _words(tensor.contiguous().reshape(-1)).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), CHUNK_ELEMENTS):
        part = words[begin : begin + CHUNK_ELEMENTS].to(torch.int64)
        place = torch.arange(begin, begin + part.numel(), device=words.device)
        # An odd multiplier of the place makes each position's weight its own (mod 2^64).
        weight = place * 0x2545F4914F6CDD1D + 0x1B873593
        total += ((weight ^ (weight >> 29)) * (part + 0x10001)).sum()
    return f"{int(total) & 0xFFFFFFFFFFFFFFFF:016x}"


def _words(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous()
    return flat.view(torch.int16) if flat.element_size() == 2 else flat.view(torch.uint8)


def _chunks(actual: Tensor, expected: Tensor) -> list[tuple[Tensor, Tensor]]:
    left, right = actual.detach().reshape(-1), expected.detach().reshape(-1)
    right = right.to(left.device)
    chunks = torch.split(left, CHUNK_ELEMENTS), torch.split(right, CHUNK_ELEMENTS)
    return list(zip(*chunks, strict=True))


def _differs(left: Tensor, right: Tensor) -> Tensor:
    size = left.element_size()
    a = left.contiguous().view(torch.uint8).reshape(-1, size)
    b = right.contiguous().view(torch.uint8).reshape(-1, size)
    return (a != b).any(dim=1)


def _distance(left: Tensor, right: Tensor) -> tuple[int, float, float]:
    """(finite elements, largest and summed absolute difference)."""
    a, b = left.float(), right.float()
    finite = torch.isfinite(a) & torch.isfinite(b)
    delta = torch.where(finite, (a - b).abs(), torch.zeros_like(a))
    count = int(finite.sum())
    return count, float(delta.max()) if delta.numel() else 0.0, float(delta.double().sum())
