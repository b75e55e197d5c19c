"""What references print: kept out of the way, its tail kept with the failure it belongs to."""

from __future__ import annotations

import os

TAIL = 4000
"""Bytes of output kept with a failure."""
LIMIT = 1 << 18
"""Bytes of unread output held for one worker."""


def marker(task: int) -> bytes:
    """Written by a worker after a task's own output."""
    return b"\0kclab %d\0" % task


class NoiseReader:
    """The parent's end of a worker's stdout and stderr, memory bounded however much comes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._buffer = bytearray()

    def read(self) -> bool:
        """Take what is there now; False at the end of the stream."""
        while True:
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._buffer += data
            if len(self._buffer) > LIMIT:
                self._trim()

    def _trim(self) -> None:
        """Drop old output, but no marker that is still to be asked for."""
        parts = self._buffer.split(b"\0")
        self._buffer = bytearray(b"\0".join(part[-TAIL:] for part in parts))
        if len(self._buffer) > LIMIT:
            del self._buffer[:-TAIL]

    def tail_of(self, task: int) -> str:
        """The end of what one finished task printed; forgets it and all before it."""
        self.read()
        before, found, after = self._buffer.partition(marker(task))
        if not found:
            return ""
        self._buffer = after
        return _text(before.rpartition(b"\0")[2])

    def rest(self) -> str:
        """The end of what came after the last asked marker."""
        self.read()
        return _text(self._buffer.rpartition(b"\0")[2])

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.descriptor)


def _text(data: bytes | bytearray) -> str:
    return bytes(data[-TAIL:]).decode(errors="replace").strip()
