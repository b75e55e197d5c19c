"""Unpaired samples are told apart as often as promised."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclab.core.unpaired import mann_whitney, shift_interval

times = st.floats(1e-3, 1e3)


def test_unpaired_interval_covers_the_truth() -> None:
    rng, covered = random.Random(5), 0
    for _ in range(400):
        control = [math.exp(rng.gauss(0.0, 0.05)) for _ in range(15)]
        candidate = [math.exp(rng.gauss(-0.1, 0.05)) for _ in range(12)]
        interval = shift_interval(control, candidate)
        covered += interval.low <= math.exp(0.1) <= interval.high
    assert covered / 400 > 0.92


def test_mann_whitney_agrees_with_values_worked_by_hand() -> None:
    # U = 0 of a mean of 12.5; z = (12.5 - 0.5) / sqrt(25 * 11 / 12) = 2.5067.
    assert mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(0.01219, abs=1e-5)
    # U = 4.5 of 8, ties of 4 and 2; z = 3 / sqrt(16 / 12 * (9 - 66 / 56)) = 0.9290.
    assert mann_whitney([1, 2, 2, 3], [2, 2, 3, 4]) == pytest.approx(0.3529, abs=1e-4)
    assert mann_whitney([1.0] * 8, [1.0] * 8) == 1.0


@settings(max_examples=50)
@given(st.lists(times, min_size=6, max_size=20), st.lists(times, min_size=6, max_size=20))
def test_mann_whitney_is_symmetric(first: list[float], second: list[float]) -> None:
    assert mann_whitney(first, second) == pytest.approx(mann_whitney(second, first))
    assert 0 <= mann_whitney(first, second) <= 1
