"""A slow-down between two sessions is found, and noise is not taken for one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from kclab.core.sessions import Basis, Session, compare_sessions, may_be_slower_by
from kclab.core.stats import Sample, Verdict

TRIALS = 100
ROUNDS = 60
SLOWER = 1.03

Disturbance = Callable[[random.Random, int], float]


def steady(rng: random.Random, number: int) -> float:
    return 1.0


def drifting(rng: random.Random, number: int) -> float:
    """Clocks fall by 8 % over the session."""
    return 1 + 0.08 * number / (4 * ROUNDS)


def outlying(rng: random.Random, number: int) -> float:
    """Every twentieth execution is interrupted for long."""
    return rng.uniform(2, 20) if rng.random() < 0.05 else 1.0


def all_of_it(rng: random.Random, number: int) -> float:
    return drifting(rng, number) * outlying(rng, number)


def paired(rng: random.Random, slower: float, disturbed: Disturbance) -> Session:
    """ABBA rounds, 1 % noise; the session's own clock level differs by up to 5 %."""
    level, samples = rng.uniform(0.95, 1.05), []
    for number in range(ROUNDS):
        for position, arm in enumerate(("B0", "B", "B", "B0")):
            ms = level * math.exp(rng.gauss(0, 0.01)) * disturbed(rng, 4 * number + position)
            samples.append(Sample(number, position, arm, ms * (0.9 * slower if arm == "B" else 1)))
    return Session(samples)


def plain(rng: random.Random, slower: float, disturbed: Disturbance) -> Session:
    """240 executions without a control, 1 % noise."""
    times = (
        slower * math.exp(rng.gauss(0, 0.01)) * disturbed(rng, number)
        for number in range(4 * ROUNDS)
    )
    return Session([Sample(number, 0, "A", ms) for number, ms in enumerate(times)])


Measure = Callable[[random.Random, float, Disturbance], Session]


def flagged(measure: Measure, slower: float, disturbed: Disturbance, seed: int) -> int:
    rng, found = random.Random(seed), 0
    for _ in range(TRIALS):
        shift = compare_sessions(measure(rng, 1.0, disturbed), measure(rng, slower, disturbed))
        assert shift is not None
        found += shift.verdict is Verdict.SLOW
    return found


ALL = pytest.mark.parametrize("disturbed", [steady, drifting, outlying, all_of_it])
SEEDS = pytest.mark.parametrize("seed", [20261130, 1, 2])


@SEEDS
@ALL
@pytest.mark.parametrize("measure", [paired, plain])
def test_a_slow_down_of_3_percent_is_flagged(
    measure: Measure, disturbed: Disturbance, seed: int
) -> None:
    assert flagged(measure, SLOWER, disturbed, seed) >= 95


@SEEDS
@ALL
@pytest.mark.parametrize("measure", [paired, plain])
def test_noise_is_not_flagged(measure: Measure, disturbed: Disturbance, seed: int) -> None:
    assert flagged(measure, 1.0, disturbed, seed) <= 5


def by(share: float) -> Disturbance:
    return lambda rng, number: 1 + share * number / (4 * ROUNDS)


@pytest.mark.parametrize(
    ("before", "after"), [(0, 0.05), (0, 0.08), (0.08, 0), (0.04, 0.08), (0.08, 0.04), (0, 0.12)]
)
def test_sessions_that_drift_differently_show_nothing_by_that(before: float, after: float) -> None:
    rng, found = random.Random(8), 0
    for _ in range(TRIALS):
        shift = compare_sessions(plain(rng, 1.0, by(before)), plain(rng, 1.0, by(after)))
        assert shift is not None
        found += shift.verdict in (Verdict.SLOW, Verdict.FAST)
    assert found <= 5


def test_a_session_that_warms_up_is_not_taken_for_a_regression() -> None:
    rng = random.Random(3)
    shift = compare_sessions(plain(rng, 1.0, steady), plain(rng, 1.0, drifting))
    assert shift is not None and shift.verdict is Verdict.UNDECIDED


def test_the_threshold_is_met_where_the_interval_reaches_it() -> None:
    rng = random.Random(4)
    shift = compare_sessions(paired(rng, 1.0, steady), paired(rng, SLOWER, steady))
    assert shift is not None and shift.basis is Basis.PAIRS
    verdict, low = shift.verdict, shift.ratio.low
    assert may_be_slower_by(0.03, verdict, low) and not may_be_slower_by(0.10, verdict, low)
    assert not may_be_slower_by(0.03, Verdict.UNDECIDED, low)
    assert not may_be_slower_by(0.03, verdict, None)


def test_stored_intervals_stand_in_for_samples() -> None:
    shift = compare_sessions(Session((), 1.02, 1.01, 1.03), Session((), 1.05, 1.04, 1.06))
    assert shift is not None and shift.basis is Basis.INTERVALS
    assert shift.verdict is Verdict.FAST
    assert shift.ratio.estimate == pytest.approx(1.05 / 1.02)
    assert math.log(shift.ratio.high / shift.ratio.estimate) == pytest.approx(
        math.hypot(math.log(1.03 / 1.01) / 2, math.log(1.06 / 1.04) / 2)
    )


def test_a_ratio_without_its_interval_decides_nothing() -> None:
    shift = compare_sessions(Session((), 1.0), Session((), 0.5))
    assert shift is not None and shift.verdict is Verdict.UNDECIDED


def test_a_ratio_and_plain_times_do_not_compare() -> None:
    assert (
        compare_sessions(Session((), 1.02, 1.01, 1.03), plain(random.Random(1), 1, steady)) is None
    )
    assert compare_sessions(Session(), Session()) is None
