"""Times mean the person's own calendar, and resolve to one instant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclab.core.errors import BadUsage
from kclab.core.when import (
    current_us,
    describe_age,
    describe_instant,
    iso_utc,
    local_time,
    parse_when,
    to_us,
)


def us(text: str) -> int:
    """Microseconds UTC of an ISO date-time with a zone."""
    return to_us(datetime.fromisoformat(text))


NOW = us("2026-11-30T10:15:30Z")  # a Monday


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The system's own local time zone, set through TZ."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


SINCE_YESTERDAY = [
    ("Asia/Seoul", "2026-02-15T07:30:00+09:00",
     {"2026-02-13T14:59:59Z": False, "2026-02-13T15:00:00Z": True, "2026-02-14T20:00:00Z": True}),
    ("America/Los_Angeles", "2026-02-14T20:00:00-08:00",
     {"2026-02-13T07:59:59Z": False, "2026-02-13T08:00:00Z": True}),
    ("UTC", "2026-01-01T00:00:01+00:00",
     {"2025-12-30T23:59:59Z": False, "2025-12-31T00:00:00Z": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("local_zone", "now", "rows"),
    SINCE_YESTERDAY,
    indirect=["local_zone"],
    ids=lambda v: str(v)[:9],
)
def test_yesterday_is_local_with_the_system_zone(
    local_zone: str, now: str, rows: dict[str, bool]
) -> None:
    bound = parse_when("yesterday", us(now))
    assert {row: us(row) >= bound for row in rows} == rows


@pytest.mark.parametrize(("zone", "now", "rows"), SINCE_YESTERDAY, ids=lambda v: str(v)[:9])
def test_yesterday_is_local_with_a_given_zone(zone: str, now: str, rows: dict[str, bool]) -> None:
    bound = parse_when("yesterday", us(now), ZoneInfo(zone))
    assert {row: us(row) >= bound for row in rows} == rows


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("now", "2026-11-30T10:15:30Z"),
        ("today", "2026-11-30T00:00:00Z"),
        ("Yesterday", "2026-11-29T00:00:00Z"),
        ("yesterday 18:00", "2026-11-29T18:00:00Z"),
        ("monday", "2026-11-30T00:00:00Z"),
        ("sunday", "2026-11-29T00:00:00Z"),
        ("tue", "2026-11-24T00:00:00Z"),
        ("2h", "2026-11-30T08:15:30Z"),
        ("2 hours ago", "2026-11-30T08:15:30Z"),
        ("90m", "2026-11-30T08:45:30Z"),
        ("1.5h", "2026-11-30T08:45:30Z"),
        ("30s", "2026-11-30T10:15:00Z"),
        ("3 days ago", "2026-11-27T10:15:30Z"),
        ("  3   days  ago ", "2026-11-27T10:15:30Z"),
        ("2w", "2026-11-16T10:15:30Z"),
        ("2026-11-29", "2026-11-29T00:00:00Z"),
        ("2026-11-29T10:00", "2026-11-29T10:00:00Z"),
        ("2026-11-29 10:00:05", "2026-11-29T10:00:05Z"),
        ("2026-11-29T10:00:00.000001Z", "2026-11-29T10:00:00.000001Z"),
        ("2026-11-29T10:00+09:00", "2026-11-29T01:00:00Z"),
        ("1970-01-01T00:00Z", "1970-01-01T00:00:00Z"),
    ],
)
def test_grammar(text: str, instant: str) -> None:
    assert parse_when(text, NOW, UTC) == us(instant)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "tomorrow", "3M", "3 months ago", "-2h", "2h from now", "2026", "20261129",
     "2026-02-30", "2026-11-29T25:00", "yesterday 25:00", "2026-11-29T10:00+99:00",
     "999999999999d", "0000-01-01", "²h", "1e3 s"],
)  # fmt: skip
def test_nonsense_is_one_sentence_with_the_grammar(text: str) -> None:
    with pytest.raises(BadUsage, match=r"is not a time; write today.*2026-11-29T10:00Z\)\.$"):
        parse_when(text, NOW, UTC)


@pytest.mark.parametrize("text", ["2026-12-01", "today 10:16", "2026-11-30T10:15:31Z"])
def test_future_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="in the future; write today"):
        parse_when(text, NOW, UTC)


@pytest.mark.parametrize(
    ("zone", "now", "text", "instant"),
    [
        # Clocks went forward at 02:00 on the 8th: that local day has 23 hours.
        ("America/New_York", "2026-03-09T12:00:00-04:00", "yesterday", "2026-03-08T05:00:00Z"),
        ("America/New_York", "2026-03-09T12:00:00-04:00", "today", "2026-03-09T04:00:00Z"),
        # A length of time is exact across the change.
        ("America/New_York", "2026-03-09T12:00:00-04:00", "2 days ago", "2026-03-07T16:00:00Z"),
        # Clocks went back at 02:00 on the 1st: that local day has 25 hours.
        ("America/New_York", "2026-11-02T12:00:00-05:00", "yesterday", "2026-11-01T04:00:00Z"),
        # This midnight did not exist: 00:00 became 01:00, which is the day's first instant.
        ("America/Sao_Paulo", "2018-11-05T12:00:00-02:00", "2018-11-04", "2018-11-04T03:00:00Z"),
        # This midnight came twice: the first one starts the day.
        ("America/Havana", "2026-11-01T12:00:00-05:00", "today", "2026-11-01T04:00:00Z"),
        ("Asia/Kathmandu", "2026-06-01T00:10:00+05:45", "yesterday", "2026-05-30T18:15:00Z"),
    ],
)  # fmt: skip
def test_local_midnight_survives_clock_changes(
    zone: str, now: str, text: str, instant: str
) -> None:
    assert parse_when(text, us(now), ZoneInfo(zone)) == us(instant)


@pytest.mark.parametrize("local_zone", ["America/New_York"], indirect=True)
def test_local_midnight_survives_clock_changes_in_the_system_zone(local_zone: str) -> None:
    assert parse_when("yesterday", us("2026-03-09T16:00:00Z")) == us("2026-03-08T05:00:00Z")
    assert parse_when("2026-07-01", NOW) == us("2026-07-01T04:00:00Z")


@pytest.mark.parametrize("local_zone", ["Asia/Tokyo"], indirect=True)
def test_resolved_instant_is_described_locally_and_in_utc(local_zone: str) -> None:
    bound = parse_when("yesterday", us("2026-11-30T01:00:00Z"))
    assert describe_instant(bound) == "2026-11-29 00:00 +09:00 (2026-11-28T15:00:00Z)"


def test_instant_written_under_one_zone_reads_the_same_under_another() -> None:
    written = to_us(datetime(2026, 2, 14, 20, 0), ZoneInfo("Asia/Tokyo"))
    assert iso_utc(written) == "2026-02-14T11:00:00Z"
    assert local_time(written, UTC) == local_time(written, ZoneInfo("America/New_York"))


def test_clock_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCLAB_NOW", "2026-11-30T10:15:30Z")
    assert current_us() == NOW
    monkeypatch.setenv("KCLAB_NOW", str(NOW + 1))
    assert current_us() == NOW + 1
    monkeypatch.setenv("KCLAB_NOW", "noonish")
    with pytest.raises(BadUsage, match="KCLAB_NOW"):
        current_us()


@given(st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)))
def test_iso_text_round_trips(moment: datetime) -> None:
    instant = to_us(moment, UTC)
    assert parse_when(iso_utc(instant), instant, UTC) == instant


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (45, "45 s ago"), (300, "5 min ago"), (7300, "2 h ago"),
     (86_400, "24 h ago"), (3 * 86_400, "3 d ago"), (-7300, "in 2 h")],
)  # fmt: skip
def test_age_for_people(seconds: int, text: str) -> None:
    assert describe_age(NOW - seconds * 1_000_000, NOW) == text
