"""What is asked of the model, and the noise that it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kclab.core.errors import BadUsage, CheckFailed
from kclab.h3.layout import Layout
from kclab.h3.packing import random_latents
from kclab.h3.sampler import Latents
from kclab.h3.sigmas import beta_sigmas
from kclab.h3.sizes import Sizes

if TYPE_CHECKING:
    from torch import Tensor

CANONICAL_TOKENS = 37_810


@dataclass(frozen=True, slots=True)
class Request:
    """One generation; the defaults are the canonical workload's."""

    width: int = 1344
    """Pixels."""
    height: int = 768
    frames: int = 124
    """Aligned up where the VAE cannot make so many."""
    text_tokens: int = 100
    steps: int = 12
    sampler_step: int = 1
    """The step whose activations are captured, from 1."""
    seed: int = 440_420

    @property
    def layout(self) -> Layout:
        """Its token counts. Raises BadUsage; CheckFailed where the canonical count is missed."""
        layout = Layout.of(self.width, self.height, self.frames, self.text_tokens)
        if self.canonical and layout.tokens != CANONICAL_TOKENS:
            raise CheckFailed(
                f"the canonical workload has {CANONICAL_TOKENS:,} tokens, this one "
                f"{layout.tokens:,}: the packing is wrong."
            )
        return layout

    @property
    def canonical(self) -> bool:
        """Whether it is the workload that results are compared by, whatever its step count."""
        names = ("width", "height", "frames", "text_tokens", "sampler_step", "seed")
        return all(getattr(self, name) == getattr(CANONICAL_REQUEST, name) for name in names)

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise levels of its steps. Raises BadUsage where the captured step is none of them."""
        levels = beta_sigmas(self.steps)
        if not 1 <= self.sampler_step < len(levels):
            raise BadUsage(
                f"sampler step {self.sampler_step}: {self.steps} steps are "
                f"numbered from 1 to {len(levels) - 1}."
            )
        return levels

    def start(self, sizes: Sizes, device: str) -> tuple[Latents, Tensor]:
        """(noise, bfloat16 text [tokens, hidden]) from the seed; the text counts as refined."""
        layout = self.layout
        noise, generator = random_latents(
            layout, (sizes.video_channels, sizes.audio_channels), self.seed
        )
        text = torch.randn(layout.text, sizes.hidden, generator=generator)
        moved = Latents(noise.video.to(device), noise.audio.to(device))
        return moved, text.to(device, torch.bfloat16)


CANONICAL_REQUEST = Request()

TINY_REQUEST = Request(width=96, height=64, frames=22, text_tokens=7)
"""123 tokens, so that rows are padded."""
