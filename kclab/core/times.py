"""Times are integers: microseconds since the epoch, UTC."""

from __future__ import annotations

import os
import time
import uuid

Microseconds = int
"""Microseconds UTC since the epoch, or a length of time in microseconds."""


def now_us() -> Microseconds:
    """This instant, microseconds UTC."""
    return time.time_ns() // 1000


def uuid7() -> str:
    """A time-ordered uuid (RFC 9562, version 7): 48 bits of milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
