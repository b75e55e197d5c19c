"""The queue between the engine's threads and the writer, bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Backlog(Generic[Item]):
    """Items with the memory that they hold: waiting, or being written.

    A call asks for room before it copies anything. It waits only while the writer has something to
    give back, so a call larger than the whole bound passes alone, and a call nested in another one
    never waits for it.
    """

    def __init__(self, bound: int):
        self.bound = bound
        """Bytes that may be held at once."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Item, int]] = deque()
        self._held = 0
        self._queued = 0
        self._open = True

    def admit(self, nbytes: int, *, wait: bool) -> bool:
        """Hold `nbytes`; False when there is no room and none is waited for."""
        with self._changed:
            while self._held + nbytes > self.bound and self._queued:
                if not wait or not self._open:
                    return False
                self._changed.wait(1.0)
            self._held += nbytes
            return True

    def put(self, item: Item, nbytes: int) -> None:
        """Hand an item over; its bytes were admitted before."""
        with self._changed:
            self._waiting.append((item, nbytes))
            self._queued += nbytes
            self._changed.notify_all()

    def give_back(self, nbytes: int) -> None:
        """Release admitted bytes whose call came to nothing."""
        with self._changed:
            self._held -= nbytes
            self._changed.notify_all()

    def take_all(self, timeout: float) -> list[tuple[Item, int]]:
        """Everything that waits; empty when nothing came within `timeout` seconds."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(timeout)
            taken = list(self._waiting)
            self._waiting.clear()
            return taken

    def written(self, nbytes: int) -> None:
        """Release bytes that the writer is done with."""
        with self._changed:
            self._held -= nbytes
            self._queued -= nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """The writer is gone: nobody may wait for it any more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
