"""Timing statistics hold their promises on data whose truth is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclab.core.stats import (
    MIN_PAIRS,
    Interval,
    Sample,
    Verdict,
    compare_arms,
    drift,
    judge,
    median_interval,
    noise_floor,
    quantile,
    ratio_interval,
    round_ratios,
    self_ratios,
)

times = st.floats(1e-3, 1e3)


def abba(
    rounds: int, *, speedup: float = 1.0, noise: float = 0.01, slope: float = 0.0, seed: int = 0
) -> list[Sample]:
    """ABBA rounds: A takes 1 ms, B 1/speedup, log-normal noise, `slope` log drift a launch."""
    rng = random.Random(seed)
    return [
        Sample(r, p, arm, math.exp(rng.gauss(0, noise) + slope * (4 * r + p)) / factor)
        for r in range(rounds)
        for p, (arm, factor) in enumerate([("A", 1), ("B", speedup), ("B", speedup), ("A", 1)])
    ]


@pytest.mark.parametrize("count", [6, 10, 25, 40])
@pytest.mark.parametrize("shape", ["normal", "exponential", "cauchy"])
def test_median_interval_covers_the_truth(count: int, shape: str) -> None:
    rng = random.Random(count)
    draw = {
        "normal": lambda: rng.gauss(0, 1),
        "exponential": lambda: rng.expovariate(1) - math.log(2),
        "cauchy": lambda: math.tan(math.pi * (rng.random() - 0.5)),
    }[shape]
    trials = 1500
    intervals = [median_interval([draw() for _ in range(count)]) for _ in range(trials)]
    covered = sum(i.low <= 0 <= i.high for i in intervals) / trials
    # Three standard errors of the simulation around the promised coverage.
    error = 3 * math.sqrt(0.05 * 0.95 / trials)
    assert intervals[0].coverage >= 0.95
    assert abs(covered - intervals[0].coverage) < error


@pytest.mark.parametrize("count", range(1, MIN_PAIRS))
def test_too_few_values_bound_nothing(count: int) -> None:
    interval = median_interval([1.0] * count)
    assert (interval.low, interval.high, interval.coverage) == (-math.inf, math.inf, 0.0)


def test_six_values_give_their_range() -> None:
    interval = median_interval([3, 1, 2, 6, 5, 4])
    assert (interval.low, interval.estimate, interval.high) == (1, 3.5, 6)
    assert interval.coverage == pytest.approx(1 - 2 / 64)


@given(st.lists(times, min_size=1, max_size=60))
def test_median_lies_inside_its_interval(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval.low <= interval.estimate <= interval.high


@given(st.lists(st.floats(0.5, 2), min_size=6, max_size=60))
def test_swapping_the_arms_inverts_the_ratio(ratios: list[float]) -> None:
    ratio, inverse = ratio_interval(ratios), ratio_interval([1 / r for r in ratios])
    assert inverse.estimate == pytest.approx(1 / ratio.estimate)
    assert (inverse.low, inverse.high) == pytest.approx((1 / ratio.high, 1 / ratio.low))


@given(st.lists(times, min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_ordered_and_inside(values: list[float], one: float, two: float) -> None:
    low, high = sorted((quantile(values, one), quantile(values, two)))
    ordered = sorted((one, two))
    assert quantile(values, ordered[0]) == pytest.approx(low)
    assert min(values) <= low <= high <= max(values) * (1 + 1e-12)


def test_quantile_interpolates() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile([10, 20], 0.95) == pytest.approx(19.5)


def test_linear_drift_cancels_in_abba_rounds() -> None:
    samples = abba(12, speedup=1.03, noise=0.0, slope=0.01)
    assert round_ratios(samples, "A", "B") == pytest.approx([1.03] * 12)


def test_rounds_without_both_arms_are_left_out() -> None:
    samples = [Sample(0, 0, "A", 1.0), Sample(1, 0, "A", 2.0), Sample(1, 1, "B", 1.0)]
    assert round_ratios(samples, "A", "B") == [2.0]


def test_drift_is_reported_and_does_not_move_the_ratio() -> None:
    comparison = compare_arms(abba(40, speedup=1.03, noise=0.003, slope=0.0007), "A", "B")
    assert comparison.ratio.estimate == pytest.approx(1.03, abs=0.003)
    assert comparison.drift == pytest.approx(math.expm1(0.0007 * 159), abs=0.02)
    assert comparison.verdict is Verdict.FAST


def test_outliers_move_neither_ratio_nor_drift() -> None:
    samples = abba(40, speedup=1.03, noise=0.003)
    spoiled = [
        Sample(s.round, s.position, s.arm, s.ms * 20) if s.round % 10 == 3 and s.arm == "B" else s
        for s in samples
    ]
    comparison = compare_arms(spoiled, "A", "B")
    assert comparison.ratio.estimate == pytest.approx(1.03, abs=0.003)
    assert abs(comparison.drift) < 0.005
    assert comparison.outliers == 4


@pytest.mark.parametrize(
    ("speedup", "verdict"), [(1.03, "FAST"), (1.0, "SAME"), (0.97, "SLOW")]
)  # fmt: skip
def test_verdict_on_a_known_difference(speedup: float, verdict: str) -> None:
    assert compare_arms(abba(60, speedup=speedup, noise=0.004), "A", "B").verdict == verdict


def test_five_pairs_decide_nothing_however_clear() -> None:
    assert compare_arms(abba(5, speedup=2.0, noise=0.0), "A", "B").verdict is Verdict.UNDECIDED
    assert compare_arms(abba(6, speedup=2.0, noise=0.0), "A", "B").verdict is Verdict.FAST


def test_noise_as_large_as_the_difference_decides_nothing() -> None:
    assert compare_arms(abba(8, speedup=1.02, noise=0.1), "A", "B").verdict is Verdict.UNDECIDED


def test_identical_code_is_seldom_called_fast_or_slow() -> None:
    verdicts = [compare_arms(abba(20, noise=0.02, seed=s), "A", "B").verdict for s in range(200)]
    wrong = sum(v in (Verdict.FAST, Verdict.SLOW) for v in verdicts)
    assert wrong <= 4


def test_noise_floor_needs_pairs_and_grows_with_noise() -> None:
    assert noise_floor([]) == noise_floor([1.0] * 5) == math.inf
    quiet = noise_floor(self_ratios(abba(30, noise=0.001), "A"))
    loud = noise_floor(self_ratios(abba(30, noise=0.05), "A"))
    assert quiet < 0.002 < 0.01 < loud


def test_self_ratios_fall_back_to_neighbouring_rounds() -> None:
    single = [Sample(r, p, arm, 1.0 + r) for r in range(4) for p, arm in enumerate("AB")]
    assert self_ratios(single, "A") == pytest.approx([1 / 2, 3 / 2, 3 / 4])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.02, 1.05, "FAST"), (0.995, 1.004, "SAME"), (0.93, 0.96, "SLOW"), (0.999, 1.02, "UNDECIDED"),
     (0.98, 1.02, "UNDECIDED")],
)  # fmt: skip
def test_judging_an_interval_against_a_floor(low: float, high: float, verdict: str) -> None:
    assert judge(Interval((low + high) / 2, low, high, 0.95), floor=0.01) == verdict


def test_noisy_machine_proves_no_sameness() -> None:
    assert judge(Interval(1.0, 0.9, 1.1, 0.95), floor=0.5) is Verdict.UNDECIDED
    assert judge(Interval(1.0, 0.985, 1.015, 0.95), floor=0.5) is Verdict.SAME


def test_unmeasured_floor_decides_nothing() -> None:
    assert judge(Interval(2, 1.9, 2.1, 0.95), floor=math.inf) is Verdict.UNDECIDED


@given(st.lists(times, max_size=2))
def test_drift_of_hardly_anything_is_none(values: list[float]) -> None:
    assert drift(values) == 0.0


def test_drift_of_a_long_series_is_thinned_not_lost() -> None:
    assert drift([math.exp(1e-4 * i) for i in range(2001)]) == pytest.approx(math.expm1(0.2))


def test_no_common_round_is_an_error() -> None:
    with pytest.raises(ValueError, match="no round holds both A and B"):
        compare_arms([Sample(0, 0, "A", 1.0)], "A", "B")
