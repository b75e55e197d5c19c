"""The denoising loop, against models whose answer is known."""

from __future__ import annotations

import torch

from kclab.h3.sampler import Latents, denoised, sample
from kclab.h3.sigmas import audio_sigma, beta_sigmas

DATA = Latents(torch.randn(2, 3, 4, 4), torch.randn(2, 2, 5))
NOISE = Latents(torch.randn(2, 3, 4, 4), torch.randn(2, 2, 5))


def perfect(seen: Latents, sigma: float) -> Latents:
    """The velocity noise - data of the one sample that there is."""
    level = audio_sigma(sigma)
    noise = (seen.audio - (1 - level) * DATA.audio) / level
    video_noise = (seen.video - (1 - sigma) * DATA.video) / sigma
    return Latents(video_noise - DATA.video, noise - DATA.audio)


def go_on(done: int, steps: int) -> bool:
    return True


def test_a_perfect_model_finds_video_and_audio_again() -> None:
    found, steps = sample(perfect, NOISE, beta_sigmas(12), go_on)
    assert steps == 12
    torch.testing.assert_close(found.video, DATA.video, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.audio, DATA.audio, rtol=1e-4, atol=1e-4)


def test_the_model_sees_audio_at_its_own_noise_level() -> None:
    sigma = beta_sigmas(12)[5]
    level = audio_sigma(sigma)
    noisy = Latents(
        sigma * NOISE.video + (1 - sigma) * DATA.video,
        (level * NOISE.audio + (1 - level) * DATA.audio) * sigma / level,
    )
    seen: list[Latents] = []

    def look(latents: Latents, at: float) -> Latents:
        seen.append(latents)
        return perfect(latents, at)

    clean = denoised(look, noisy, sigma)
    expected = level * NOISE.audio + (1 - level) * DATA.audio
    torch.testing.assert_close(seen[0].audio, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(clean.video, DATA.video, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(clean.audio, 4 * DATA.audio, rtol=1e-4, atol=1e-4)


def error_at(steps: int) -> float:
    """Distance from the exact solution where the clean latents drift with the noise level."""

    def drifting(seen: Latents, sigma: float) -> Latents:
        return Latents((seen.video - sigma) / sigma, torch.zeros_like(seen.audio))

    # denoised(x, s) = s, so dx/ds = (x - s) / s: x(s) = s (1 - ln s) from x(1) = 1.
    levels = [1.0 - 0.5 * i / steps for i in range(steps + 1)]
    start = Latents(torch.ones(1, 1, 1, 1), torch.zeros(1, 2, 1))
    found, _ = sample(drifting, start, levels, go_on)
    exact = 0.5 * (1 + torch.log(torch.tensor(2.0)))
    return float((found.video - exact).abs())


def test_steps_between_the_first_and_last_are_of_second_order() -> None:
    # The first step is Euler's, whose error alone falls with the square of its length.
    assert error_at(40) < error_at(10) / 10


def test_a_stop_keeps_the_steps_made() -> None:
    calls: list[float] = []

    def counted(seen: Latents, sigma: float) -> Latents:
        calls.append(sigma)
        return perfect(seen, sigma)

    _, steps = sample(counted, NOISE, beta_sigmas(12), lambda done, all_: done < 3)
    assert steps == 3
    assert calls == list(beta_sigmas(12)[:3])
