"""The GPU's own clock: events around a launch, behind an overwrite of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kclab.fc2.lt_timer import Timer

if TYPE_CHECKING:
    from kclab.fc2.backends.cublaslt import CublasLt, LtGemm

FLUSH_BYTES = 256 << 20
"""Overwritten before each cold sample: several times any L2, and longer than a launch's host work.
"""

SERIES_FLUSH = 2
"""Times the size of the L2 cache that a series overwrites before each sample."""

SETTLES = 3.0
"""Seconds: a GPU at its power limit has found its clock by then, though not its temperature."""


class DeviceClock:
    """Events around one launch, behind an overwrite of the cache."""

    def __init__(self, backend: CublasLt, flush_bytes: int):
        self.policy = "cold" if flush_bytes else "hot"
        self.settles = 0.0 if backend.fake else SETTLES
        self._timer = Timer(backend.library)
        self._backend = backend
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8, device=backend.device)

    def sample(self, launch: Callable[[], None]) -> float:
        stream = self._backend.stream()
        self._timer.start(stream, self._flush.data_ptr(), self._flush.numel())
        launch()
        return self._timer.stop(stream)

    def series(
        self, gemm: Any, prepared: Sequence[Any], order: Sequence[int]
    ) -> list[float | None]:
        own: LtGemm = gemm
        # In a series the host runs ahead, so the overwrite has only the cache to empty.
        size = min(self._flush.numel(), SERIES_FLUSH * self._backend.gpu.l2_bytes)
        flush = (self._flush.data_ptr(), size)
        return self._timer.series(own.handle, own.buffers(), prepared, order, flush)

    def close(self) -> None:
        """Free the events."""
        self._timer.close()
