"""What a fork must not cut in two.

A fork's child has one thread and every lock as it stood. A mutex inside SQLite that the writer held
at that moment is never released there, nor is a flock, which belongs to the open file that parent
and child then share: the child would wait for ever. So whoever forks waits for these moments to
pass, and takes no open connection along (SQLite would mistake the parent's file locks for its own).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

DATABASE = threading.RLock()
"""Held while the writer is inside SQLite."""
FLOCK = threading.RLock()
"""Held for as long as a flock is."""


class Connected(Protocol):
    """Something that keeps a connection open between uses."""

    def disconnect(self) -> None:
        """Close it; it is opened again when it is needed. Called with `DATABASE` held."""


_connected: weakref.WeakSet[Connected] = weakref.WeakSet()


def disconnect_at_forks(connected: Connected) -> None:
    """Let every fork close what this holds open, for as long as it lives."""
    with DATABASE:
        _connected.add(connected)


def _before() -> None:
    DATABASE.acquire()
    FLOCK.acquire()
    for connected in list(_connected):
        connected.disconnect()


def _after() -> None:
    FLOCK.release()
    DATABASE.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
