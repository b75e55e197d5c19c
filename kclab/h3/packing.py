"""Latents to tokens and back, and what a packed sequence carries besides its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kclab.h3.layout import Layout
from kclab.h3.sampler import Latents
from kclab.h3.sigmas import audio_sigma, model_time
from kclab.h3.sizes import AUDIO_ROWS, AUDIO_TAG, MODALITIES, PATCH

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ModulatedSegment:
    """Consecutive tokens that AdaLN modulates alike."""

    start: int
    stop: int
    row: int
    """Row of the modulation tables: 3 * (place among the times) + modality."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One forward's input to the blocks."""

    hidden: Tensor
    """bfloat16 [S, hidden]."""
    times: Tensor
    """float32 [T]: the distinct times in the sequence, rising, in [0, 1]."""
    segments: tuple[ModulatedSegment, ...]
    positions: Tensor
    """float64 [S, 3]."""

    def modulation_rows(self) -> Tensor:
        """int64 [S]: each token's row of the modulation tables."""
        rows = torch.empty(len(self.hidden), dtype=torch.int64, device=self.hidden.device)
        for segment in self.segments:
            rows[segment.start : segment.stop] = segment.row
        return rows


def times_and_segments(
    layout: Layout, sigma: float
) -> tuple[tuple[float, ...], tuple[ModulatedSegment, ...]]:
    """The distinct times at a video noise level, and who uses which.

    At the first step video and audio are both pure noise: one time, not two.
    """
    video, audio = model_time(sigma), model_time(audio_sigma(sigma))
    times = tuple(sorted({video, audio}))
    return times, tuple(
        ModulatedSegment(
            segment.start,
            segment.stop,
            times.index(audio if segment.tag == AUDIO_TAG else video) * MODALITIES + segment.tag,
        )
        for segment in layout.segments
    )


def video_tokens(video: Tensor) -> Tensor:
    """[C, T, H, W] to [T * H/2 * W/2, 4 C]: the rows of a frame, each a 2x2 patch of channels."""
    channels, frames, height, width = video.shape
    patches = video.reshape(channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * PATCH * PATCH)


def video_latents(tokens: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """What `video_tokens` was given; `grid` is the latent (frames, height, width)."""
    frames, height, width = grid
    rows, columns = height // PATCH, width // PATCH
    patches = tokens.reshape(frames, rows, columns, -1, PATCH, PATCH)
    return patches.permute(3, 0, 1, 4, 2, 5).reshape(-1, frames, height, width)


def audio_tokens(audio: Tensor) -> Tensor:
    """[C, 2, T] to [2 T, C]: one channel's latents after the other's."""
    return audio.permute(1, 2, 0).reshape(-1, audio.shape[0])


def audio_latents(tokens: Tensor) -> Tensor:
    """What `audio_tokens` was given."""
    return tokens.reshape(AUDIO_ROWS, -1, tokens.shape[-1]).permute(2, 0, 1)


def random_latents(
    layout: Layout, channels: tuple[int, int], seed: int
) -> tuple[Latents, torch.Generator]:
    """Unit Gaussian (video, audio) noise and the generator that goes on from there.

    `channels` are those of video and audio. Made on the CPU: the same bytes for every device.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    video = torch.randn(channels[0], *layout.video_grid, generator=generator)
    audio = torch.randn(channels[1], AUDIO_ROWS, layout.audio_latents, generator=generator)
    return Latents(video, audio), generator
