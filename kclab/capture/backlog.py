"""The queue between the engine's threads and the writer, bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
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
        self._steps = 0
        """Selected steps under way."""
        self._short = False
        """Whether a call waits for room."""
        self._open = True

    def admit(self, nbytes: int, *, wait: bool) -> bool:
        """Hold `nbytes`; False when there is no room and none is waited for."""
        with self._changed:
            while self._held + nbytes > self.bound and self._queued:
                if not wait or not self._open:
                    return False
                self._short = True
                self._changed.notify_all()
                self._changed.wait(1.0)
            self._short = False
            self._held += nbytes
            return True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Let items wait while a step runs inside, unless memory gets short.

        The writer is Python in the engine's own process: beside a step it would take turns that
        the step needs to issue its work.
        """
        self._count_step(1)
        try:
            yield
        finally:
            self._count_step(-1)

    def _count_step(self, change: int) -> None:
        with self._changed:
            self._steps += change
            self._changed.notify_all()

    def _may_take(self) -> bool:
        rests = self._steps and not self._short and self._queued <= self.bound // 2
        return bool(self._waiting) and not rests

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
        """Everything that waits; empty when nothing came within `timeout` seconds.

        That is also how long items wait at most while a step runs.
        """
        with self._changed:
            self._changed.wait_for(self._may_take, timeout)
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
