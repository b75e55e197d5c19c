"""One timing in two sessions: did it become faster, slower, or is nothing proven?

Absolute times differ from session to session by clocks and temperature, much more than what one
looks for. A session that timed its candidate in pairs with a control brings its own yardstick: its
rounds' ratios, in which drift cancels, are then compared with the other session's. Without a
control, times are compared as distributions; where they drift, by their places in the sessions, and
the floor is raised by what the two sessions' drifts differ by. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kclab.core.stats import (
    CONFIDENCE,
    MARGIN,
    MIN_PAIRS,
    SAMENESS_LIMIT,
    Interval,
    Sample,
    Verdict,
    judge,
    median,
    median_interval,
    noise_floor,
    round_ratios,
    self_ratios,
)
from kclab.core.unpaired import shift_interval

BLOCKS = 24
"""Neighbouring unpaired samples are no independent ones; they count as at most so many blocks."""


class Basis(StrEnum):
    """What a shift rests on, the strongest first."""

    PAIRS = "paired rounds"
    """Each round's control / candidate, of both sessions."""
    INTERVALS = "intervals"
    """The sessions' stored ratios and intervals; the samples are not here."""
    SAMPLES = "samples"
    """Times without a control."""


@dataclass(frozen=True, slots=True)
class Session:
    """What one session measured; a part that is not known stays empty."""

    samples: Sequence[Sample] = ()
    ratio: float | None = None
    """Control / candidate, as stored."""
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    """The A/A noise floor that was measured with it."""
    arms: tuple[str, str] | None = field(default=None)
    """(control, candidate); None lets the samples tell."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The later session against the earlier one."""

    ratio: Interval
    """Earlier / later time, above 1 where it became faster."""
    floor: float
    """Relative differences up to this are noise."""
    basis: Basis
    verdict: Verdict


def may_be_slower_by(share: float, verdict: str | None, low: float | None) -> bool:
    """Whether a shift with that verdict is proven slower, and `share` slower lies within its
    interval, whose lower end is `low`, or is exceeded.
    """
    return verdict == Verdict.SLOW and low is not None and low <= 1 / (1 + share)


def compare_sessions(before: Session, after: Session) -> Shift | None:
    """What became of a timing from one session to another; None where nothing can be compared."""
    return (
        _by_pairs(before, after)
        or _by_intervals(before, after)
        or (_by_samples(before, after) if before.ratio is None and after.ratio is None else None)
    )


def _by_pairs(before: Session, after: Session) -> Shift | None:
    first, second = _rounds(before), _rounds(after)
    if min(len(first), len(second)) < MIN_PAIRS:
        return None
    # A round's ratio is higher where the candidate is faster: the later one goes on top.
    return _shift(shift_interval(second, first), _floor(before, after), Basis.PAIRS)


def _rounds(session: Session) -> list[float]:
    arms = _arms(session)
    return round_ratios(session.samples, *arms) if arms else []


def _arms(session: Session) -> tuple[str, str] | None:
    """Control and candidate: named, or B0 and B of a search, or the only two in their order."""
    if session.arms:
        return session.arms
    names = sorted({sample.arm for sample in session.samples})
    if {"B0", "B"} <= set(names):
        return "B0", "B"
    return (names[0], names[1]) if len(names) == 2 and "B0" not in names else None


def _floor(*sessions: Session) -> float:
    """The larger noise floor of the two; what only few samples tell bounds nothing."""
    known = []
    for session in sessions:
        floor, arms = session.floor, _arms(session)
        if floor is None and arms:
            floor = noise_floor(self_ratios(session.samples, arms[0]))
        if floor is not None and math.isfinite(floor):
            known.append(floor)
    return max(known, default=MARGIN)


def _by_intervals(before: Session, after: Session) -> Shift | None:
    """The quotient of two independent ratios: half-widths add up in squares on the log scale."""
    if not before.ratio or not after.ratio:
        return None
    widths = [_half_width(session) for session in (before, after)]
    gain = after.ratio / before.ratio
    if None in widths:
        return _shift(Interval(gain, 0.0, math.inf, 0.0), _floor(before, after), Basis.INTERVALS)
    spread = math.exp(math.hypot(*(width for width in widths if width is not None)))
    ratio = Interval(gain, gain / spread, gain * spread, CONFIDENCE)
    return _shift(ratio, _floor(before, after), Basis.INTERVALS)


def _half_width(session: Session) -> float | None:
    if not session.low or session.high is None or not math.isfinite(session.high):
        return None
    return math.log(session.high / session.low) / 2


def _by_samples(before: Session, after: Session) -> Shift | None:
    first, second = ([sample.ms for sample in one.samples] for one in (before, after))
    if not first or not second:
        return None
    floor = max(SAMENESS_LIMIT, _halves_differ(first), _halves_differ(second))
    if floor > SAMENESS_LIMIT and len(first) == len(second) >= 2 * MIN_PAIRS:
        return _by_place(first, second)
    return _shift(shift_interval(_blocks(first), _blocks(second)), floor, Basis.SAMPLES)


def _by_place(first: Sequence[float], second: Sequence[float]) -> Shift:
    """Sessions that drift, block by block: what a warm-up does to both cancels.

    The floor is what is left of it, the difference between the halves of the blocks' ratios.
    """
    ratios = [a / b for a, b in zip(_blocks(first), _blocks(second), strict=True)]
    floor = max(SAMENESS_LIMIT, _halves_differ(ratios))
    return _shift(median_interval(ratios), floor, Basis.SAMPLES)


def _blocks(times: Sequence[float]) -> Sequence[float]:
    size = -(-len(times) // BLOCKS)
    return [median(times[i : i + size]) for i in range(0, len(times), size)]


def _halves_differ(times: Sequence[float]) -> float:
    half = len(times) // 2
    if half < MIN_PAIRS:
        return 0.0
    return math.expm1(abs(math.log(median(times[:half]) / median(times[half:]))))


def _shift(ratio: Interval, floor: float, basis: Basis) -> Shift:
    return Shift(ratio, floor, basis, judge(ratio, floor))
