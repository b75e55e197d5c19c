"""The noise levels of a run, against values computed with SciPy."""

from __future__ import annotations

import pytest

from kclab.core.errors import BadUsage
from kclab.h3.sigmas import audio_sigma, beta_distribution, beta_quantile, beta_sigmas, model_time

# scipy.stats.beta(0.6, 0.6).ppf, then ComfyUI's table, at 12 steps.
VIDEO = [1.0, 0.997517, 0.991727, 0.982512, 0.969359, 0.950419, 0.923360, 0.882958, 0.820614]
VIDEO += [0.720733, 0.548708, 0.270677, 0.0]
AUDIO = [1.0, 0.990143, 0.967708, 0.933535, 0.887755, 0.827354, 0.750749, 0.653499, 0.533505]
AUDIO += [0.392171, 0.233108, 0.084906, 0.0]


def test_twelve_steps_have_the_published_noise_levels() -> None:
    assert beta_sigmas(12) == pytest.approx(VIDEO, abs=5e-7)
    assert [audio_sigma(sigma) for sigma in beta_sigmas(12)] == pytest.approx(AUDIO, abs=5e-7)


def test_the_quantile_inverts_the_distribution() -> None:
    for percent in range(1, 100):
        x = beta_quantile(percent / 100, 0.6, 0.6)
        assert beta_distribution(x, 0.6, 0.6) == pytest.approx(percent / 100, abs=1e-12)


def test_the_distribution_is_the_arcsine_law_at_one_half() -> None:
    # I_x(1/2, 1/2) = 2/pi asin(sqrt(x)): 1/3 at x = 1/4.
    assert beta_distribution(0.25, 0.5, 0.5) == pytest.approx(1 / 3, abs=1e-14)
    assert beta_distribution(0.75, 0.5, 0.5) == pytest.approx(2 / 3, abs=1e-14)


def test_steps_that_meet_on_one_level_are_one_step() -> None:
    levels = beta_sigmas(900)
    assert len(levels) < 901
    assert sorted(set(levels), reverse=True) == list(levels)


def test_time_runs_from_noise_to_clean_and_never_reaches_it() -> None:
    assert model_time(1.0) == 0.0
    assert 0 < 1 - model_time(0.0) < 1e-8


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_a_step_count_without_a_schedule_is_refused(steps: int) -> None:
    with pytest.raises(BadUsage, match="steps"):
        beta_sigmas(steps)
