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
    """A time-ordered uuid: RFC 9562 version 7, whose 12 bits after the version hold the fraction
    of the millisecond (its section 6.2, method 3), so that runs of one millisecond sort too.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") >> 2
    value = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | random
    return str(uuid.UUID(int=value))
