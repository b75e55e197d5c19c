"""Plots put what they show where it belongs."""

from __future__ import annotations

import pytest

from kclab.core.stats import Sample
from kclab.tui.plots import LABEL, round_plot, strip_plot


def samples(**arms: list[float]) -> list[Sample]:
    return [
        Sample(number, position, arm, ms)
        for position, (arm, times) in enumerate(arms.items())
        for number, ms in enumerate(times)
    ]


def test_slower_arm_lies_to_the_right() -> None:
    lines = [line.plain for line in strip_plot(samples(A=[2.0] * 9, B=[1.0] * 9), 80)]
    assert lines[0].startswith("A") and lines[2].startswith("B")
    assert lines[0].index("█") > lines[2].index("█") + 40


def test_median_stands_under_its_samples_and_in_words() -> None:
    first, marks, *_ = (line.plain for line in strip_plot(samples(B=[1.0, 1.1, 1.5]), 80))
    assert "1.1 ms" in first
    assert marks.index("┻") == LABEL + first[LABEL:].index("·", first[LABEL:].index("·") + 1)


def test_samples_beyond_the_axis_are_counted() -> None:
    times = [1 + n / 1000 for n in range(99)] + [50.0]
    first = strip_plot(samples(B=times), 80)[0].plain
    assert "+1" in first


@pytest.mark.parametrize("width", [30, 80, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    found = samples(A=[1.0 + n / 50 for n in range(60)], B0=[3.0] * 60, B=[123.456] * 60)
    lines = [*strip_plot(found, width)[:-1], *round_plot(found, width)[:-1]]
    assert max(line.cell_len for line in lines) <= max(width, 44)


def test_equal_samples_make_a_plot_too() -> None:
    assert len(strip_plot(samples(B=[1.0, 1.0]), 60)) == 3


def test_no_samples_are_said() -> None:
    assert "no samples" in strip_plot([], 60)[0].plain


def test_drift_rises_over_the_rounds() -> None:
    bar = round_plot(samples(B=[1.0 + n / 10 for n in range(8)]), 80)[0].plain
    assert bar[LABEL:] == "▁▂▃▄▅▆▇█"
