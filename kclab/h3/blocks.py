"""The block stack: blocks that stay, and blocks that exist only while they run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from torch import nn

EVERY_BLOCK: Container[int] = range(1 << 31)
"""For `kept`: make each block once, and keep it."""


class Blocks:
    """Blocks by index, made on demand.

    All 50 full-size blocks hold 64 GB; a traversal needs one at a time.
    """

    def __init__(self, count: int, make: Callable[[int], nn.Module], kept: Container[int]):
        self._count, self._make, self._kept = count, make, kept
        self._made: dict[int, nn.Module] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> nn.Module:
        if not 0 <= index < self._count:
            raise IndexError(f"block {index} of {self._count}")
        if index in self._made:
            return self._made[index]
        block = self._make(index)
        if index in self._kept:
            self._made[index] = block
        return block

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[index] for index in range(self._count))
