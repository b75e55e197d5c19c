"""Recognising a tensor that was recorded before, cheaper than copying it again.

A content key is a 128-bit, position-dependent checksum with dtype, shape and memory order. It
stands for the sha256 that the writer found under the same key. Pointers and version counters have
no part in it: inference tensors have no version, `.data` writes escape it, offloading reuses
buffers. On the CPU the checksum is XXH3 over the memory; elsewhere it is computed where the tensor
lies, so that 16 bytes a 16 MiB piece cross the bus and one synchronisation is paid.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kclab.blob.tensors import tensor_buffer

WORTH_BYTES = 256 << 10
"""Below this a copy costs the engine's thread no more than a checksum."""

PIECE_WORDS = 2 << 20
"""int64 words of one device piece (16 MiB): bounds the temporaries on the engine's device."""

_MIX = (-0x61C8864680B583EB, 0x2545F4914F6CDD1D)
"""Odd multipliers: 2^64 / golden ratio (splitmix64's), and xorshift64*'s."""

HOST_CHECKSUM = importlib.util.find_spec("xxhash") is not None
"""Whether CPU tensors can be recognised: an engine's own environment may lack xxhash."""

ContentKey: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], str, bytes]
"""(dtype, shape, memory order, method, checksum)."""


@dataclass(frozen=True, slots=True)
class DenseView:
    """A tensor without gaps or overlaps, its dimensions put in memory order."""

    tensor: Tensor
    """Contiguous; `raw` bytes for the 8- and 4-bit floats, which torch can hardly copy."""
    order: tuple[int, ...]
    """`logical.permute(order)` is `tensor`; empty where the tensor is contiguous as it is."""


def dense_view(tensor: Tensor) -> DenseView | None:
    """`tensor` seen in memory order, None where it has gaps or overlaps (slices, expand)."""
    if tensor.is_contiguous():
        return DenseView(tensor, ())
    dimensions = range(tensor.dim())
    order = tuple(sorted(dimensions, key=tensor.stride, reverse=True))
    ordered = tensor.permute(order)
    return DenseView(ordered, order) if ordered.is_contiguous() else None


def can_recognise(tensor: Tensor) -> bool:
    """Whether a checksum of `tensor` costs less than its copy."""
    return HOST_CHECKSUM or tensor.device.type != "cpu"


def content_key(dtype: str, shape: tuple[int, ...], view: DenseView) -> ContentKey:
    """The key of a tensor's content; reads all of it, once."""
    if view.tensor.device.type == "cpu":
        return dtype, shape, view.order, "xxh3", host_checksum(tensor_buffer(view.tensor))
    return dtype, shape, view.order, "words", device_checksum(view.tensor)


def host_checksum(buffer: Any) -> bytes:
    """XXH3-128 of a buffer; about memory speed, with the GIL released."""
    from xxhash import xxh3_128_digest

    return bytes(xxh3_128_digest(buffer))


def device_checksum(tensor: Tensor) -> bytes:
    """16 bytes for each 16 MiB of a contiguous tensor, computed on its own device.

    Each 64-bit word is multiplied by an odd weight of its position and mixed before it is summed,
    so that neither an order nor compensating changes go unseen.
    """
    words = _words(tensor)
    weights = _weights(tensor.device)
    sums = [
        _mixed_sums(piece, weights[: piece.numel()]) for piece in torch.split(words, PIECE_WORDS)
    ]
    if not sums:
        return b""
    return bytes(torch.stack(sums).cpu().numpy().tobytes())


def _words(tensor: Tensor) -> Tensor:
    raw = tensor.detach().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 == 0 and raw.storage_offset() % 8 == 0:
        return raw.view(torch.int64)
    padded = torch.zeros(-(-raw.numel() // 8) * 8, dtype=torch.uint8, device=raw.device)
    padded[: raw.numel()] = raw
    return padded.view(torch.int64)


def _mixed_sums(words: Tensor, weights: Tensor) -> Tensor:
    first = _scramble(words * weights, 32, _MIX[0])
    second = _scramble(first ^ weights, 29, _MIX[1])
    return torch.stack((first.sum(), second.sum()))


def _scramble(words: Tensor, shift: int, factor: int) -> Tensor:
    # The mask makes torch's arithmetic shift a logical one, which keeps the step one-to-one.
    shifted = (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
    return shifted.bitwise_xor_(words).mul_(factor)


@lru_cache(maxsize=16)
def _weights(device: torch.device) -> Tensor:
    """Odd pseudo-random words, one for each position of a piece."""
    with torch.inference_mode(False):
        index = torch.arange(1, PIECE_WORDS + 1, dtype=torch.int64, device=device)
        weights = _scramble(_scramble(index * _MIX[0], 30, _MIX[1]), 27, _MIX[0]).bitwise_or_(1)
        if device.type == "cuda":  # the next to use them may be on another stream
            torch.cuda.current_stream(device).synchronize()
        return weights


class KnownTensors:
    """Which content keys are stored already, and under which digest. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: dict[ContentKey, str] = {}
        self._forms: set[tuple[str, tuple[int, ...]]] = set()

    def has_form(self, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether any tensor of this dtype and shape is known: else a checksum cannot help."""
        return (dtype, shape) in self._forms

    def digest(self, key: ContentKey) -> str | None:
        """The sha256 that is stored for a key."""
        return self._digests.get(key)

    def copy(self) -> KnownTensors:
        """The same knowledge under a lock of its own, for a fork's child."""
        twin = KnownTensors()
        twin._digests.update(self._digests)
        twin._forms.update(self._forms)
        return twin

    def add(self, key: ContentKey, digest: str) -> None:
        """Remember a stored tensor; only once its bytes are durable."""
        with self._lock:
            self._digests[key] = digest
            self._forms.add(key[:2])
