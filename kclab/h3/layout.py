"""Where each token of the packed sequence [text | audio | video] stands, in rows and in space-time.

Formulas after ComfyUI's `comfy/ldm/minimax/model.py`; row counts of the canonical request are
the published 100 + 414 + 37,296 = 37,810.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kclab.core.errors import BadUsage
from kclab.h3.sizes import AUDIO_ROWS, AUDIO_TAG, PATCH, TEXT_TAG, VIDEO_TAG

if TYPE_CHECKING:
    from torch import Tensor

FRAMES_PER_SECOND = 24
AUDIO_PER_SECOND = 40
"""Audio latents."""

CLIP_FRAMES, CLIP_LATENTS = 17, 5
"""The video VAE's causal clips: 17 frames become latents of 1, 4, 4, 4 and 4 frames."""

FIRST_FRAMES, FIRST_LATENTS = 5, 2
"""What a video starts with besides whole clips."""

SPATIAL = 16
"""Pixels a latent, each way."""

SPATIAL_SPAN = 32.0
"""Height and width coordinates of a square picture run over this range."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one modality."""

    start: int
    stop: int
    tag: int


def align_frames(frames: int) -> int:
    """The next frame count that the VAE can make: 5 more than a multiple of 17."""
    if frames < 1:
        raise BadUsage(f"{frames} frames: at least one is needed.")
    return frames + (FIRST_FRAMES - frames) % CLIP_FRAMES


@dataclass(frozen=True, slots=True)
class Layout:
    """Row counts of one request."""

    width: int
    height: int
    frames: int
    """Aligned, see `align_frames`."""
    text: int
    """Text tokens."""

    @classmethod
    def of(cls, width: int, height: int, frames: int, text: int) -> Layout:
        """Check sizes in pixels and align the frame count. Raises BadUsage."""
        multiple = SPATIAL * PATCH
        if width < multiple or height < multiple or width % multiple or height % multiple:
            raise BadUsage(f"{width}x{height}: width and height must be multiples of {multiple}.")
        if text < 1:
            raise BadUsage(f"{text} text tokens: at least one is needed.")
        return cls(width, height, align_frames(frames), text)

    @property
    def video_grid(self) -> tuple[int, int, int]:
        """Latent (frames, height, width)."""
        clips = (self.frames - FIRST_FRAMES) // CLIP_FRAMES
        latents = clips * CLIP_LATENTS + FIRST_LATENTS
        return latents, self.height // SPATIAL, self.width // SPATIAL

    @property
    def audio_latents(self) -> int:
        """Audio latents of one channel."""
        return round(self.frames / FRAMES_PER_SECOND * AUDIO_PER_SECOND)

    @property
    def audio(self) -> int:
        """Audio tokens."""
        return AUDIO_ROWS * self.audio_latents

    @property
    def video(self) -> int:
        """Video tokens."""
        latents, height, width = self.video_grid
        return latents * (height // PATCH) * (width // PATCH)

    @property
    def tokens(self) -> int:
        """Rows of the packed sequence: FC2's M."""
        return self.text + self.audio + self.video

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Text, audio, video."""
        middle = self.text + self.audio
        return (
            Segment(0, self.text, TEXT_TAG),
            Segment(self.text, middle, AUDIO_TAG),
            Segment(middle, self.tokens, VIDEO_TAG),
        )

    def positions(self) -> Tensor:
        """float64 [tokens, 3]: the (time, height, width) coordinates that rotate each token.

        Time counts audio latents, on from the text's last token; a video latent lasts as long
        as its frames. An audio token's width tells its channel.
        """
        found = torch.zeros(self.tokens, 3, dtype=torch.float64)
        text, audio, video = self.segments
        found[text.start : text.stop, 0] = torch.arange(self.text, dtype=torch.float64)
        _, height, width = self.video_grid
        rows, columns = _axis(height, height * width), _axis(width, height * width)
        ticks = torch.arange(self.audio_latents, dtype=torch.float64) + self.text
        found[audio.start : audio.stop, 0] = ticks.repeat(AUDIO_ROWS)
        sides = torch.stack((columns[0], columns[-1])).repeat_interleave(self.audio_latents)
        found[audio.start : audio.stop, 2] = sides
        grid = torch.cartesian_prod(self._video_times(), rows, columns)
        found[video.start : video.stop] = grid
        return found

    def _video_times(self) -> Tensor:
        latents = self.video_grid[0]
        ticks = AUDIO_PER_SECOND / FRAMES_PER_SECOND
        frames = [1.0 if i % CLIP_LATENTS == 0 else 4.0 for i in range(latents - 1)]
        spans = torch.tensor([0.0, *frames], dtype=torch.float64) * ticks
        return spans.cumsum(0) + self.text


def _axis(size: int, area: int) -> Tensor:
    """Coordinates of the patches along one side; `size` and `area` in latents.

    The longer the side against the square root of the area, the wider its range around the
    middle of the span; its end is left out.
    """
    ratio = float(size / area**0.5)
    steps = torch.arange(size // PATCH, dtype=torch.float64)
    return ((1 - ratio) / 2 + steps * (ratio / (size // PATCH))) * SPATIAL_SPAN
