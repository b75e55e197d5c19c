"""The denoising loop: res_multistep over video and audio together.

The audio is carried scaled, so that one noise level, the video's, drives both: where the audio's
own level is s_a, the model sees audio * s_a / sigma, and its velocity becomes one of the carried
audio (ComfyUI's `ModelSamplingAV`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclab.h3.sigmas import AUDIO_SHIFT, VIDEO_SHIFT, audio_carry, audio_sigma

if TYPE_CHECKING:
    from torch import Tensor

AUDIO_GAIN = VIDEO_SHIFT / AUDIO_SHIFT
"""How much larger clean audio is while it is carried."""


@dataclass(frozen=True, slots=True)
class Latents:
    """What is denoised: video [C, T, H, W] and audio [C, 2, T], float32."""

    video: Tensor
    audio: Tensor

    def combined(self, own: float, other: Latents, theirs: float) -> Latents:
        """own * self + theirs * other."""
        return Latents(
            self.video * own + other.video * theirs, self.audio * own + other.audio * theirs
        )


Velocity = Callable[[Latents, float], Latents]
"""Latents at a video noise level, the audio at its own, to noise minus data of both."""

StepDone = Callable[[int, int], bool]
"""(steps done, steps in all) -> whether to go on."""


def denoised(velocity: Velocity, carried: Latents, sigma: float) -> Latents:
    """The clean latents, carried, that the model sees in noisy ones."""
    seen = Latents(carried.video, carried.audio * audio_carry(sigma))
    found = velocity(seen, sigma)
    gain = 1 + (AUDIO_GAIN - 1) * audio_sigma(sigma)
    audio = seen.audio * (1 - AUDIO_GAIN) + found.audio * gain
    return carried.combined(1.0, Latents(found.video, audio), -sigma)


def sample(
    velocity: Velocity, noise: Latents, sigmas: Sequence[float], done: StepDone
) -> tuple[Latents, int]:
    """(latents, steps made) from pure noise; stops early where `done` says so.

    The first and the last step are Euler's; the last one lands on the clean latents.
    """
    carried, previous = noise, None
    steps = len(sigmas) - 1
    for step in range(steps):
        clean = denoised(velocity, carried, sigmas[step])
        carried = _advance(carried, clean, previous, sigmas, step)
        previous = clean
        if not done(step + 1, steps):
            return Latents(carried.video, carried.audio / AUDIO_GAIN), step + 1
    return Latents(carried.video, carried.audio / AUDIO_GAIN), steps


def _advance(
    carried: Latents, clean: Latents, previous: Latents | None, sigmas: Sequence[float], step: int
) -> Latents:
    now, after = sigmas[step], sigmas[step + 1]
    if after == 0:
        return clean
    if previous is None:
        return carried.combined(after / now, clean, 1 - after / now)
    # Second order in the logarithm of the noise level (RES, arXiv 2308.02157).
    h = math.log(now) - math.log(after)
    c2 = (math.log(now) - math.log(sigmas[step - 1])) / h
    phi1 = math.expm1(-h) / -h
    phi2 = (phi1 - 1) / -h
    b2 = phi2 / c2 if c2 else 0.0
    change = clean.combined(phi1 - b2, previous, b2)
    return carried.combined(math.exp(-h), change, h)
