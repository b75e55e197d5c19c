"""Many transfers at a time: a service answers each small object after a while, and many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from kclab.core.units import format_bytes
from kclab.dataset.options import Progress

WORKERS = 32
"""Transfers at a time; the memory that they need is this many pieces."""

Item = TypeVar("Item")


class Stopped(Exception):
    """Another transfer failed; this one need not go on."""


class Transfers:
    """What is to be moved and how far it is; reports bytes and objects."""

    def __init__(self, what: str, objects: int, nbytes: int, report: Progress) -> None:
        self.what = what
        self.objects = objects
        self.nbytes = nbytes
        self.report = report
        self.done = 0
        self.moved = 0
        self.counted = 0
        """Objects that a mover said it moved over the network."""
        self.counted_bytes = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, move: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Move every item; the first fault ends the others, and is raised."""
        with ThreadPoolExecutor(WORKERS, "kclab-transfer") as pool:
            futures = [pool.submit(self._one, move, item) for item in items]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() for future in futures):
                    self._stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
        errors = [e for f in done if (e := f.exception()) and not isinstance(e, Stopped)]
        if errors:
            raise errors[0]

    def _one(self, move: Callable[[Item], None], item: Item) -> None:
        if self._stop.is_set():
            raise Stopped
        move(item)
        with self._lock:
            self.done += 1
        self._tell()

    def add(self, nbytes: int) -> None:
        """Some bytes arrived; raises Stopped where no more are wanted."""
        with self._lock:
            self.moved += nbytes
        self._tell()
        if self._stop.is_set():
            raise Stopped

    def count(self, nbytes: int) -> None:
        """One object went over the network."""
        with self._lock:
            self.counted += 1
            self.counted_bytes += nbytes

    def _tell(self) -> None:
        sizes = f"{format_bytes(self.moved)} of {format_bytes(self.nbytes)}"
        self.report(f"{self.what} objects ({sizes})", self.done, self.objects)
