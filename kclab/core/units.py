"""Byte sizes, counts and lengths of time: text to integers, and back for people.

Sizes are integers of bytes everywhere inside; only the edge knows units. `MiB` is 2^20 and `MB`
is 10^6 (IEC 80000-13). A bare `M` is refused: tools read it both ways, and a workspace limit that
is 5 % off chooses other kernels.
"""

from __future__ import annotations

import re
from decimal import Decimal

from kclab.core.errors import BadUsage

PREFIXES = "kmgtp"

UNITS = {"": 1, "b": 1} | {
    unit: base ** (power + 1)
    for power, prefix in enumerate(PREFIXES)
    for unit, base in ((f"{prefix}ib", 1024), (f"{prefix}b", 1000))
}
"""Lower-case unit to bytes."""

MAX_SIZE = 2**63 - 1
"""The largest integer that SQLite stores."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")

GRAMMAR = "write bytes (33554432), a binary unit (32MiB) or a decimal one (32MB)"


def parse_size(text: str) -> int:
    """Bytes of `33554432`, `32MiB`, `32 MiB`, `1.5GiB` or `32MB`; case does not matter.

    Raises BadUsage for a bare `32M` (naming both readings), an unknown unit, a sign, a fraction
    of a byte, or more than 2^63 - 1.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadUsage(f'"{text}" is not a size; {GRAMMAR}.')
    number, unit = Decimal(match[1]), match[2].lower()
    if unit not in UNITS:
        raise BadUsage(_unit_refusal(text, match[1], match[2]))
    size = number * UNITS[unit]
    if size != size.to_integral_value():
        raise BadUsage(f'"{text}" is not a whole number of bytes ({size.normalize():f}).')
    if size > MAX_SIZE:
        raise BadUsage(f'"{text}" is more than 2^63 - 1 bytes.')
    return int(size)


def parse_share(text: str) -> float:
    """0.03 of `3%`, `3 %` or `3.0%`. Raises BadUsage for a bare number, or outside 0 to 100 %."""
    match = _SHARE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) < 100:
        raise BadUsage(f'"{text}" is not a share; write a percentage between 0 and 100, like 3%.')
    return float(Decimal(match[1]) / 100)


def _unit_refusal(text: str, number: str, unit: str) -> str:
    prefix = unit[:1].lower()
    if prefix not in PREFIXES or unit.lower() not in (prefix, f"{prefix}i"):
        return f'"{text}": unknown unit "{unit}"; {GRAMMAR}.'
    binary, decimal = f"{prefix.upper()}iB", f"{'k' if prefix == 'k' else prefix.upper()}B"
    sizes = [int(Decimal(number) * UNITS[name.lower()]) for name in (binary, decimal)]
    return (
        f'"{text}" is ambiguous: write {number}{binary} ({sizes[0]:,} bytes) '
        f"or {number}{decimal} ({sizes[1]:,} bytes)."
    )


def format_bytes(size: int) -> str:
    """`32 MiB`, `1.5 GiB`, `999 B`: three digits or so, binary units, for people only."""
    value, unit = float(size), "B"
    for prefix in PREFIXES.upper():
        # 1023.95 would print as 1024.0 of the smaller unit.
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, f"{prefix}iB"
    text = f"{value:.1f}".removesuffix(".0") if unit != "B" else str(size)
    return f"{text} {unit}"


def describe_size(size: int) -> str:
    """What a parsed size was understood as: `32 MiB (33,554,432 bytes)`."""
    return f"{format_bytes(size)} ({size:,} bytes)" if size >= 1024 else f"{size} bytes"


def format_count(count: int) -> str:
    """`1,008,000`."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """`1 run`, `3 runs`, `2 processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def format_duration(seconds: float) -> str:
    """A length of time in seconds as `340 us`, `12.5 ms`, `3.42 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"
