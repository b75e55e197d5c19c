"""How two threads of one interpreter take turns while one of them is kclab's writer.

A thread that wants Python's lock waits for the switch interval (5 ms unless set otherwise) before
the one that has it must let go. An engine's loop that spins while it has nothing to do takes the
lock back at once, so that the writer would wait 5 ms after each of its system calls: 40 ms a small
tensor, minutes for a capture. And an engine that issues its work in many short calls waits for the
writer in the same way. Short turns serve both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TURN_SECONDS = 0.0002
"""Shorter ones make a writer beside a spinning thread hardly faster."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads of this process take short turns inside; then as before, unless someone set it."""
    before = sys.getswitchinterval()
    if before <= TURN_SECONDS:
        yield
        return
    sys.setswitchinterval(TURN_SECONDS)
    ours = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)
