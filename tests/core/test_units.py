"""Sizes are read exactly, or refused with both readings named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclab.core.errors import BadUsage
from kclab.core.units import describe_size, format_bytes, format_count, format_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32MiB", 33_554_432),
        ("32 MiB", 33_554_432),
        ("33554432", 33_554_432),
        ("0", 0),
        ("4MiB", 4_194_304),
        ("1GiB", 1_073_741_824),
        ("32MB", 32_000_000),
        ("64KB", 64_000),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("1.5GiB", 1_610_612_736),
        ("32mib", 33_554_432),
        (" 7 B ", 7),
        ("2TiB", 2**41),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["abc", "", "-1", "+1", "MiB", "1e6", "32 000", "1.5", "0.3KiB", "32MiBs", "5 EiB",
     str(2**63), "0x20", "٣٢MiB", "1,024"],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadUsage):
        parse_size(text)


@pytest.mark.parametrize("text", ["32M", "32m", "32Mi"])
def test_ambiguous_size_names_both_readings(text: str) -> None:
    with pytest.raises(BadUsage) as refusal:
        parse_size(text)
    assert "32MiB (33,554,432 bytes)" in str(refusal.value)
    assert "32MB (32,000,000 bytes)" in str(refusal.value)


def test_ambiguous_kilo_names_both_readings() -> None:
    with pytest.raises(BadUsage, match=r"32KiB \(32,768 bytes\) or 32kB \(32,000 bytes\)"):
        parse_size("32K")


@given(st.integers(0, 2**53), st.sampled_from(["KiB", "MiB", "KB", "MB"]))
def test_whole_multiples_are_exact(number: int, unit: str) -> None:
    expected = number * {"KiB": 2**10, "MiB": 2**20, "KB": 10**3, "MB": 10**6}[unit]
    if expected < 2**63:
        assert parse_size(f"{number}{unit}") == expected


@given(st.integers(0, 2**62))
def test_formatted_size_is_near_and_short(size: int) -> None:
    number, unit = format_bytes(size).split()
    assert len(number) <= 6
    assert float(number) * parse_size(f"1{unit}") == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (33_554_432, "32 MiB"),
     (2**20 - 1, "1 MiB"), (2**50, "1 PiB"), (2**62, "4096 PiB")],
)  # fmt: skip
def test_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_described_size_shows_the_exact_number() -> None:
    assert describe_size(32_000_000) == "30.5 MiB (32,000,000 bytes)"
    assert describe_size(0) == "0 bytes"


def test_count_for_people() -> None:
    assert format_count(1_008_000) == "1,008,000"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 us"), (34e-5, "340 us"), (0.99951e-3, "1.00 ms"), (0.0125, "12.5 ms"),
     (0.9996, "1.00 s"), (3.42, "3.42 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"),
     (125, "2 min 05 s"), (3599.9, "1 h 00 min"), (11_220, "3 h 07 min"),
     (3 * 86_400, "3 d 00 h"), (-0.5, "-500 ms")],
)  # fmt: skip
def test_duration_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
