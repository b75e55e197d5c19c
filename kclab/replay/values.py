"""A tensor of any dtype as chunks of flat float64, complex128 or int64 values, with their bits.

Everything that judges elements works on these chunks, so memory stays at a few chunks however
large the tensors are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kclab.core.digest import DTYPES
from kclab.core.tolerance import LOW_BIT
from kclab.replay.lowbits import FP4, decode, unpack

CPU_CHUNK = 1 << 15
"""Elements at a time: float64 buffers of this size stay in a core's cache, and torch does not
split them over threads, whose hand-over costs seconds a gigabyte on a busy machine."""
DEVICE_CHUNK = 1 << 24
"""Elements at a time on a GPU, where each chunk costs a synchronization."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DIGITS = {"bfloat16": 4, "float16": 5, "float32": 9, "complex64": 9}
"""Significant digits that tell any two values of a dtype apart."""


def dtype_of(tensor: Tensor) -> str:
    """torch's name of a tensor's dtype, without the `torch.` prefix."""
    return str(tensor.dtype).removeprefix("torch.")


def packing_of(dtype: str) -> int:
    """Values that one torch element of `dtype` holds."""
    return DTYPES[dtype].packing if dtype in DTYPES else 1


@dataclass(frozen=True, slots=True)
class FlatValues:
    """A contiguous view of one tensor, read as values; 4-bit pairs count as two."""

    flat: Tensor
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> FlatValues:
        """The logical elements of a dense tensor; copies one that is not contiguous."""
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return cls(plain, dtype_of(plain))

    @property
    def count(self) -> int:
        """Values, not torch elements."""
        return self.flat.numel() * packing_of(self.dtype)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(begin, end) of each chunk, in torch elements."""
        chunk = CPU_CHUNK if self.flat.device.type == "cpu" else DEVICE_CHUNK
        total = self.flat.numel()
        for begin in range(0, total, chunk):
            yield begin, min(begin + chunk, total)

    def values(self, begin: int, end: int) -> Tensor:
        """float64 (complex128, or int64 for integers and bool) values of torch elements."""
        part = self.flat[begin:end]
        if self.dtype in LOW_BIT:
            return decode(part.view(torch.uint8), self.dtype)
        if part.is_floating_point():
            return part.to(torch.float64)
        if part.is_complex():
            return part.to(torch.complex128)
        if part.dtype == torch.uint64:
            return part.view(torch.int64)
        return part.to(torch.int64)

    def bits(self, begin: int, end: int) -> Tensor:
        """The bit pattern of each value; two columns where a value is wider than 8 bytes."""
        part = self.flat[begin:end]
        if part.dtype == torch.bool:
            return part
        if self.dtype in LOW_BIT:
            return unpack(part.view(torch.uint8), self.dtype)
        if part.element_size() > 8:
            return torch.view_as_real(part).view(torch.int64)
        return part.view(_BITS[part.element_size()])

    def text(self, index: int) -> str:
        """One value as a person reads it; low-bit floats show their bits too."""
        packing = packing_of(self.dtype)
        element = index // packing
        value = self.values(element, element + 1)[index % packing].item()
        if self.dtype in LOW_BIT:
            pattern = int(self.bits(element, element + 1)[index % packing].item())
            return f"{value:.6g} (0x{pattern:0{1 if self.dtype == FP4 else 2}x})"
        if self.flat.dtype == torch.bool:
            return str(bool(value))
        if self.flat.dtype == torch.uint64:
            return str(value % (1 << 64))
        if isinstance(value, int):
            return str(value)
        return f"{value:.{_DIGITS.get(self.dtype, 17)}g}"


def position(index: int, shape: Sequence[int], packing: int = 1) -> list[int]:
    """The coordinates of a flat index; the last dimension counts `packing` values an element."""
    sizes = [*shape[:-1], shape[-1] * packing] if shape else []
    coordinates = []
    for size in reversed(sizes):
        index, coordinate = divmod(index, size)
        coordinates.append(coordinate)
    return coordinates[::-1]
