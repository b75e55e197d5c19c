"""Points in time as people type them, resolved to microseconds UTC.

Day words (`today`, `yesterday`, a weekday) and dates mean local midnight, because "since
yesterday" is a question about somebody's calendar. A length of time (`2h`, `3 days ago`) is exact:
a day is 24 hours of it, whatever the clocks did. Where summer time makes a local midnight not
exist, the day's first instant counts; where it comes twice, the first of the two.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal

from kclab.core.errors import BadUsage
from kclab.core.times import Microseconds, now_us

GRAMMAR = (
    "write today, yesterday or a weekday (with a time if wanted: yesterday 18:00), "
    "a length of time (90m, 2h, 3 days ago), "
    "or an ISO date or date-time (2026-11-29, 2026-11-29T10:00, 2026-11-29T10:00Z)"
)

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}

LENGTH_UNITS = {
    name: seconds
    for unit, seconds in SECONDS.items()
    for name in (unit[0], unit, f"{unit}s", *{"second": ("sec", "secs"), "minute": ("min", "mins"),
                                              "hour": ("hr", "hrs")}.get(unit, ()))
}  # fmt: skip

AGES = (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 172_800), ("d", 86_400, float("inf")))
"""(unit, its seconds, below how many seconds it is used)."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)(?:\s+ago)?")
_DAY = re.compile(r"([a-z]+)(?:[ t]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?))?")
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?", re.IGNORECASE)


def current_us() -> Microseconds:
    """Now, or what KCLAB_NOW says (microseconds UTC, or ISO with a zone) so that tests can fix it.

    Raises BadUsage for a KCLAB_NOW that is neither.
    """
    fixed = os.environ.get("KCLAB_NOW")
    if not fixed:
        return now_us()
    if fixed.isascii() and fixed.isdigit():
        return int(fixed)
    try:
        moment = datetime.fromisoformat(fixed)
    except ValueError as error:
        raise BadUsage(f'KCLAB_NOW: "{fixed}" is not an ISO date-time.') from error
    return to_us(moment)


def parse_when(
    text: str, now: Microseconds | None = None, zone: tzinfo | None = None
) -> Microseconds:
    """Microseconds UTC of a point in time at or before `now`.

    `zone` is the local time zone, the system's (TZ) where it is None. Raises BadUsage for
    anything outside the grammar and for a time in the future.
    """
    now = current_us() if now is None else now
    words = " ".join(text.split())
    moment = _resolve(words, now, zone)
    if moment is None:
        raise BadUsage(f'"{text}" is not a time; {GRAMMAR}.')
    if moment > now:
        raise BadUsage(f'"{text}" is {describe_instant(moment, zone)}, in the future; {GRAMMAR}.')
    return moment


def _resolve(words: str, now: Microseconds, zone: tzinfo | None) -> Microseconds | None:
    try:
        for found in (
            _length_ago(words, now),
            _day_word(words.lower(), now, zone),
            _iso(words, zone),
        ):
            if found is not None:
                return found
    except (ValueError, OverflowError):
        pass  # 2026-02-30, 25:00, ten million days: shaped like a time, but none
    return None


def _length_ago(words: str, now: Microseconds) -> Microseconds | None:
    match = _LENGTH.fullmatch(words.lower())
    # `3M` may be meant as months, which have no fixed length.
    if match is None or match[2] not in LENGTH_UNITS or words.endswith("M"):
        return None
    moment = now - int(Decimal(match[1]) * LENGTH_UNITS[match[2]] * 1_000_000)
    return moment if moment >= 0 else None


def _day_word(words: str, now: Microseconds, zone: tzinfo | None) -> Microseconds | None:
    if words == "now":
        return now
    match = _DAY.fullmatch(words)
    today = local_time(now, zone).date()
    day = None if match is None else _day_named(match[1], today)
    if match is None or day is None:
        return None
    clock = time.fromisoformat(match[2]) if match[2] else time.min
    return to_us(datetime.combine(day, clock), zone)


def _day_named(word: str, today: date) -> date | None:
    if word in ("today", "yesterday"):
        return today - timedelta(days=int(word == "yesterday"))
    for number, name in enumerate(WEEKDAYS):
        if word in (name, name[:3]):
            return today - timedelta(days=(today.weekday() - number) % 7)
    return None


def _iso(words: str, zone: tzinfo | None) -> Microseconds | None:
    return to_us(datetime.fromisoformat(words), zone) if _ISO.fullmatch(words) else None


def to_us(moment: datetime, zone: tzinfo | None = None) -> Microseconds:
    """Microseconds UTC of a date-time; one without a zone is local in `zone` (None: the system's).

    >>> to_us(datetime(1970, 1, 1, 9, tzinfo=UTC))
    32400000000
    """
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def local_time(instant: Microseconds, zone: tzinfo | None = None) -> datetime:
    """An instant on the local clock, with its offset; `zone` None means the system's."""
    return (EPOCH + timedelta(microseconds=instant)).astimezone(zone)


def iso_utc(instant: Microseconds) -> str:
    """`2026-11-28T15:00:00Z`, with as many fractional digits as the instant has (0, 3 or 6)."""
    spec = "microseconds" if instant % 1000 else "milliseconds" if instant % 10**6 else "seconds"
    moment = EPOCH + timedelta(microseconds=instant)
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def describe_instant(instant: Microseconds, zone: tzinfo | None = None) -> str:
    """What a time was understood as: `2026-11-29 00:00 +09:00 (2026-11-28T15:00:00Z)`."""
    local = local_time(instant, zone)
    precision = "minutes" if not (local.second or local.microsecond) else "seconds"
    offset = local.isoformat()[-6:]
    clock = local.replace(tzinfo=None).isoformat(" ", precision)
    return f"{clock} {offset} ({iso_utc(instant)})"


def describe_age(instant: Microseconds, now: Microseconds) -> str:
    """How long ago, in one unit: `just now`, `5 min ago`, `3 h ago`, `12 d ago`; `in 3 h`."""
    seconds = abs(now - instant) // 1_000_000
    if seconds < 10:
        return "just now"
    age = next(f"{seconds // length} {unit}" for unit, length, limit in AGES if seconds < limit)
    return f"{age} ago" if instant <= now else f"in {age}"
