"""The MiniMax-H3 denoiser: one packed sequence through 50 blocks."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kclab.core.errors import BadUsage
from kclab.h3.blocks import Blocks
from kclab.h3.layout import Layout
from kclab.h3.packing import (
    Packed,
    audio_latents,
    audio_tokens,
    times_and_segments,
    video_latents,
    video_tokens,
)
from kclab.h3.parts import Ends, use_attention
from kclab.h3.sampler import Latents, Velocity
from kclab.h3.sizes import MODALITIES, Sizes
from kclab.h3.weights import random_block, random_ends

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What every block gets besides the tokens."""

    embedded: Tensor
    """float32 [T, time_dim]."""
    rows: Tensor
    """int64 [S]: rows of the modulation tables."""
    rotary: tuple[Tensor, Tensor]
    """Cosines and sines, float32 [S, 6 * rope_freqs]."""


BlockRun = Callable[[int, "nn.Module", "Tensor", Conditioning], "Tensor"]
"""(index, block, tokens [S, hidden], conditioning) to what the block makes of them."""


def run_block(_index: int, block: nn.Module, hidden: Tensor, conditioning: Conditioning) -> Tensor:
    """[S, hidden] through one block as it is."""
    result: Tensor = block(
        hidden[None], conditioning.embedded, conditioning.rows, conditioning.rotary
    )
    return result[0]


@dataclass(frozen=True, slots=True)
class Denoiser:
    """A model on one device."""

    sizes: Sizes
    ends: Ends
    blocks: Blocks
    device: str

    def pack(self, layout: Layout, text: Tensor, latents: Latents, sigma: float) -> Packed:
        """[text | audio | video] as tokens; the audio is at its own noise level."""
        ends = self.ends
        video = ends.video_in(video_tokens(latents.video.float()))
        audio = ends.audio_in(audio_tokens(latents.audio.float()))
        refined = self.refine(text)
        hidden = torch.cat([refined, audio.to(refined.dtype), video.to(refined.dtype)])
        times, segments = times_and_segments(layout, sigma)
        at = torch.tensor(times, dtype=torch.float32, device=self.device)
        return Packed(hidden, at, segments, layout.positions().to(self.device))

    def refine(self, text: Tensor) -> Tensor:
        """[tokens, text_dim] to [tokens, hidden]; text of that width has been refined already."""
        if text.shape[-1] == self.sizes.hidden:
            return text
        if text.shape[-1] != self.sizes.text_dim:
            raise BadUsage(
                f"text of width {text.shape[-1]}: {self.sizes.text_dim} (as encoded) or "
                f"{self.sizes.hidden} (refined) is expected."
            )
        projected = self.ends.text_in(text.to(self.ends.text_in.weight.dtype))
        refined: Tensor = self.ends.refiner(projected[None])[0]
        return refined

    def condition(self, packed: Packed) -> Conditioning:
        """Times embedded, positions as rotations."""
        return Conditioning(
            self.ends.time(packed.times),
            packed.modulation_rows(),
            self.ends.rope(packed.positions),
        )

    def traverse(
        self, hidden: Tensor, conditioning: Conditioning, run: BlockRun = run_block
    ) -> Tensor:
        """[S, hidden] through all blocks."""
        for index in range(len(self.blocks)):
            hidden = run(index, self.blocks[index], hidden, conditioning)
        return hidden

    def velocity(self, layout: Layout, text: Tensor, run: BlockRun = run_block) -> Velocity:
        """The model as the sampler calls it; the heads say data minus noise, hence the sign."""

        def call(latents: Latents, sigma: float) -> Latents:
            packed = self.pack(layout, text, latents, sigma)
            conditioning = self.condition(packed)
            hidden = self.traverse(packed.hidden, conditioning, run)
            return self._heads(layout, hidden, conditioning)

        return call

    def _heads(self, layout: Layout, hidden: Tensor, conditioning: Conditioning) -> Latents:
        times = conditioning.rows // MODALITIES
        normed = self.ends.norm_out(hidden, conditioning.embedded, times).float()
        _, audio, video = layout.segments
        video_rows = self.ends.video_out(normed[video.start : video.stop])
        audio_rows = self.ends.audio_out(normed[audio.start : audio.stop])
        grid = layout.video_grid
        return Latents(-video_latents(video_rows, grid), -audio_latents(audio_rows))


def random_denoiser(
    sizes: Sizes,
    seed: int,
    device: str,
    *,
    attention: str | None = None,
    kept: Container[int] = (),
) -> Denoiser:
    """A denoiser with random weights; blocks outside `kept` are made anew each time they run."""

    def make(index: int) -> nn.Module:
        block = random_block(sizes, index, seed, device)
        use_attention(block, attention)
        return block

    ends = random_ends(sizes, seed, device)
    use_attention(ends, attention)
    return Denoiser(sizes, ends, Blocks(sizes.layers, make, kept), device)
