"""The C library's timer, from Python: device time of one launch, or of a long series of them."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence

from kclab.fc2.lt import Library
from kclab.fc2.lt_structs import AlgorithmStruct, Buffers


class Timer:
    """Device time between two points of a stream."""

    def __init__(self, library: Library):
        self._library = library
        address = c.c_void_p()
        library.call("timer_create", c.byref(address))
        self._address = int(address.value or 0)

    def start(self, stream: int, flush: int, flush_bytes: int) -> None:
        """Overwrite the flush buffer, then mark the start."""
        self._library.call("timer_start", self._address, stream, flush, flush_bytes)

    def stop(self, stream: int) -> float:
        """Mark the end, wait for it; milliseconds since the start."""
        out = c.c_float()
        self._library.call("timer_stop", self._address, stream, c.byref(out))
        return float(out.value)

    def series(
        self,
        handle: int,
        buffers: Buffers,
        algorithms: Sequence[AlgorithmStruct],
        order: Sequence[int],
        flush: tuple[int, int],
    ) -> list[float | None]:
        """Milliseconds of `algorithms[i]` for each i of `order`; None where the run was refused.

        `flush` is the address and size of what is overwritten before each run.
        """
        count = len(order)
        took, status = (c.c_float * count)(), (c.c_int32 * count)()
        self._library.call(
            "timer_series",
            *(self._address, handle, c.byref(buffers)),
            *((AlgorithmStruct * len(algorithms))(*algorithms), (c.c_int32 * count)(*order)),
            *(count, *flush, took, status),
        )
        return [None if bad else ms for ms, bad in zip(took, status, strict=True)]

    def close(self) -> None:
        """Free its events; harmless twice."""
        if self._address:
            self._library.destroy_timer(self._address)
            self._address = 0
