"""Every size of the MiniMax-H3 denoiser."""

from __future__ import annotations

from dataclasses import dataclass

from kclab.core.errors import BadUsage

MODALITIES = 3
"""AdaLN keeps one set of parameters for each: 0 video, 1 text, 2 audio."""

VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2

PATCH = 2
"""Latent rows and columns that one video token covers."""

AUDIO_ROWS = 2
"""Stereo: each audio latent is two tokens, channel by channel."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of one denoiser; the defaults are MiniMax-H3's own (`transformer/config.json`)."""

    hidden: int = 5376
    """Width of the residual stream: FC2's N."""
    ffn: int = 14336
    """Width after SwiGLU: FC2's K."""
    layers: int = 50
    refiner_layers: int = 2
    heads: int = 56
    head_dim: int = 128
    text_dim: int = 5120
    """Width of the text encoder's states; text that is already `hidden` wide is not refined."""
    video_channels: int = 24
    audio_channels: int = 32
    freq_dim: int = 256
    """Sinusoidal features of a timestep."""
    time_hidden: int = 5376
    time_dim: int = 2688
    """Width of a timestep's embedding: 8 in pruned checkpoints, which interpolate a table."""
    rope_freqs: int = 16
    """Frequencies an axis; 2 * 3 * `rope_freqs` of `head_dim` channels are rotated."""
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if 6 * self.rope_freqs > self.head_dim:
            raise BadUsage(
                f"{self.rope_freqs} rotary frequencies rotate {6 * self.rope_freqs} channels, "
                f"a head has {self.head_dim}."
            )
        if min(self.hidden, self.ffn, self.layers, self.heads, self.head_dim) < 1:
            raise BadUsage("hidden, FFN, layers, heads and head dimension must be positive.")

    @property
    def inner(self) -> int:
        """Width of queries, keys and values; wider than `hidden` in the real model."""
        return self.heads * self.head_dim

    @property
    def video_features(self) -> int:
        """Values of one video token."""
        return self.video_channels * PATCH * PATCH


CANONICAL = Sizes()
"""The real model."""

TINY = Sizes(
    hidden=64,
    ffn=128,
    heads=3,
    head_dim=32,
    text_dim=48,
    video_channels=8,
    audio_channels=8,
    freq_dim=32,
    time_hidden=64,
    time_dim=32,
    rope_freqs=4,
)
"""The same 50 blocks, small enough for a CPU to run in seconds."""
