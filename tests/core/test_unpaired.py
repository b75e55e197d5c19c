"""Unpaired samples are told apart as often as promised."""

from __future__ import annotations

import math
import random

import pytest

from kclab.core.unpaired import shift_interval


@pytest.mark.parametrize(("n", "m"), [(15, 12), (6, 40), (40, 30)])
def test_interval_covers_the_truth(n: int, m: int) -> None:
    rng, covered, trials = random.Random(5), 0, 200
    for _ in range(trials):
        control = [math.exp(rng.gauss(0.0, 0.05)) for _ in range(n)]
        candidate = [math.exp(rng.gauss(-0.1, 0.05)) for _ in range(m)]
        interval = shift_interval(control, candidate)
        covered += interval.low <= math.exp(0.1) <= interval.high
    assert 0.91 < covered / trials < 0.99


def test_swapping_the_samples_inverts_the_ratio() -> None:
    rng = random.Random(7)
    first, second = ([rng.uniform(1, 2) for _ in range(9)] for _ in range(2))
    ratio, inverse = shift_interval(first, second), shift_interval(second, first)
    assert inverse.low == pytest.approx(1 / ratio.high)
    assert inverse.high == pytest.approx(1 / ratio.low)


def test_outliers_do_not_move_it() -> None:
    interval = shift_interval([2.0] * 9 + [500.0], [1.0] * 9 + [0.001])
    assert interval.estimate == 2.0


def test_too_few_values_bound_nothing() -> None:
    interval = shift_interval([2.0] * 5, [1.0] * 50)
    assert (interval.estimate, interval.low, interval.high, interval.coverage) == (
        2,
        0,
        math.inf,
        0,
    )
