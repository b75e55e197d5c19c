"""Noise levels: the beta schedule, the shift between video and audio, the time that AdaLN sees.

Formulas after ComfyUI's `beta` scheduler (alpha = beta = 0.6) and `ModelSamplingAV`.
"""

from __future__ import annotations

import math

from kclab.core.errors import BadUsage

VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
"""`sigma_shift_scales` of the published model."""

TABLE_SIZE = 1000
"""Noise levels between which the schedule chooses."""

SHAPE = 0.6
"""Both shape parameters of the beta distribution."""

SMALLEST_TIMESTEP = 1e-6
"""A timestep is 1000 sigma, and never below this."""


def shifted(base: float, shift: float) -> float:
    """A noise level in [0, 1], moved towards 1 by a shift above 1."""
    return shift * base / (1 + (shift - 1) * base)


def audio_sigma(sigma: float) -> float:
    """The audio's noise level when the video's is `sigma`."""
    base = sigma / (VIDEO_SHIFT + sigma * (1 - VIDEO_SHIFT))
    return shifted(base, AUDIO_SHIFT)


def audio_carry(sigma: float) -> float:
    """What the sampler's audio is multiplied with to be what the model sees."""
    return audio_sigma(sigma) / sigma


def model_time(sigma: float) -> float:
    """The time that the model embeds: 0 is pure noise, 1 is clean."""
    return 1 - max(sigma * 1000, SMALLEST_TIMESTEP) / 1000


def beta_sigmas(steps: int) -> tuple[float, ...]:
    """Video noise levels of a run, falling from 1 to 0. Raises BadUsage.

    There are `steps` + 1 of them, fewer where two steps fall on one table entry.
    """
    if not 1 <= steps <= TABLE_SIZE:
        raise BadUsage(f"{steps} steps: from 1 to {TABLE_SIZE} are possible.")
    places = [
        round(beta_quantile(1 - step / steps, SHAPE, SHAPE) * (TABLE_SIZE - 1))
        for step in range(steps)
    ]
    distinct = sorted(set(places), reverse=True)
    return (*(shifted((place + 1) / TABLE_SIZE, VIDEO_SHIFT) for place in distinct), 0.0)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The value below which a beta(a, b) variable stays with this probability, to 1e-15."""
    if probability <= 0 or probability >= 1:
        return float(probability >= 1)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_distribution(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_distribution(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function (DLMF 8.17.22, Lentz's continued fraction)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_distribution(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), whose value divides the leading factor."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, 300):
        half = i // 2
        if i % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value
