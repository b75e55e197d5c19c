"""The model's modules, made of diffusers' parts on torch's `meta` device: shapes without memory.

Attention has one fused query-key-value projection and the feed-forward its gate first, both as
checkpoints store them; fill the parameters with `kclab.h3.weights` or `kclab.h3.checkpoint`.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.h3.curve import CurveModulation, CurveNormOut, CurveTime
from kclab.h3.feed_forward import FeedForward
from kclab.h3.sizes import Sizes

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT_DTYPE = torch.bfloat16
"""Blocks, norms and text; the patch projections, heads and time embedding are float32."""


def diffusers_h3() -> ModuleType:
    """diffusers' module of this model. Raises EnvironmentLacking."""
    try:
        from diffusers.models.transformers import transformer_minimax_h3
    except ImportError as error:
        raise EnvironmentLacking(
            "MiniMax-H3 is assembled from diffusers 0.42 or newer, which is not here; "
            "pip install 'kclab[demo]'."
        ) from error
    return transformer_minimax_h3


def make_block(sizes: Sizes, *, curve: bool) -> nn.Module:
    """One transformer block, on `meta`."""
    h3 = diffusers_h3()
    with torch.device("meta"):
        block: nn.Module = h3.MiniMaxH3TransformerBlock(
            sizes.hidden,
            sizes.heads,
            sizes.head_dim,
            sizes.ffn,
            sizes.time_dim,
            sizes.eps,
            sizes.eps,
        )
        _as_stored(block, sizes)
        if curve:
            block.adaln_proj = CurveModulation(sizes.time_dim, sizes.hidden, WEIGHT_DTYPE)
    return block.eval().requires_grad_(False)


def _as_stored(block: nn.Module, sizes: Sizes) -> None:
    block.ff = FeedForward(sizes.hidden, sizes.ffn)
    attention: Any = block.attn
    attention.to_qkv = nn.Linear(sizes.hidden, 3 * sizes.inner, bias=False)
    attention.fused_projections = True
    for name in ("to_q", "to_k", "to_v"):
        delattr(attention, name)


class TimeEmbedding(nn.Module):
    """Times [T] in [0, 1] to float32 [T, time_dim]: sinusoids (cosines first), then an MLP."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        from diffusers.models.embeddings import TimestepEmbedding, Timesteps

        self.sinusoids: nn.Module = Timesteps(sizes.freq_dim, True, 0)
        self.mlp: nn.Module = TimestepEmbedding(
            sizes.freq_dim, sizes.time_hidden, out_dim=sizes.time_dim
        )

    def forward(self, times: Tensor) -> Tensor:
        result: Tensor = self.mlp(self.sinusoids(times.float()))
        return result


class Ends(nn.Module):
    """All but the blocks: projections in and out, text refiner, time, rotary frequencies."""

    def __init__(self, sizes: Sizes, *, curve: bool):
        super().__init__()
        h3 = diffusers_h3()
        dim, hidden = sizes.time_dim, sizes.hidden
        self.video_in = nn.Linear(sizes.video_features, hidden)
        self.audio_in = nn.Linear(sizes.audio_channels, hidden)
        self.text_in = nn.Linear(sizes.text_dim, hidden)
        self.refiner: nn.Module = h3.MiniMaxH3TokenRefiner(
            hidden,
            sizes.heads,
            sizes.head_dim,
            sizes.ffn,
            sizes.refiner_layers,
            sizes.eps,
            sizes.eps,
            sizes.eps,
        )
        for block in self.refiner.get_submodule("refiner_blocks").children():
            _as_stored(block, sizes)
        self.time: nn.Module = CurveTime(dim) if curve else TimeEmbedding(sizes)
        self.norm_out: nn.Module = (
            CurveNormOut(dim, hidden, sizes.eps, WEIGHT_DTYPE)
            if curve
            else h3.MiniMaxH3AdaLayerNormOut(hidden, dim, sizes.eps)
        )
        self._sizes = sizes
        self.rope = self.make_rope()
        self.video_out = nn.Linear(hidden, sizes.video_features)
        self.audio_out = nn.Linear(hidden, sizes.audio_channels)

    def make_rope(self) -> nn.Module:
        """Positions [S, 3] to cosines and sines."""
        rope: nn.Module = diffusers_h3().MiniMaxH3RotaryPosEmbed(
            self._sizes.rope_freqs, self._sizes.rope_theta
        )
        return rope


def make_ends(sizes: Sizes, *, curve: bool) -> Ends:
    """Everything around the blocks, on `meta`."""
    with torch.device("meta"):
        ends = Ends(sizes, curve=curve)
    return ends.eval().requires_grad_(False)


IN_FLOAT32 = ("video_in", "audio_in", "video_out", "audio_out", "time")
"""Modules of `Ends` in float32, as the published checkpoint has them."""

CURVE_IN_FLOAT32 = (CurveModulation, CurveNormOut)
"""Their `linear` computes in float32, whatever it is stored as."""


def materialise(module: nn.Module, device: str) -> None:
    """Give a module uninitialised parameters of the right dtypes; frequencies are computed."""
    module.to_empty(device=device)
    module.to(WEIGHT_DTYPE)
    for name, part in module.named_modules():
        if name in IN_FLOAT32:
            part.float()
        if isinstance(part, CURVE_IN_FLOAT32):
            part.linear.float()
        if isinstance(part, Ends):
            part.rope = part.make_rope().to(device)


def use_attention(module: nn.Module, backend: str | None) -> None:
    """Compute attention with a backend as diffusers names it; None leaves torch's own.

    Raises BadUsage for an unknown name, EnvironmentLacking where its package is missing.
    """
    if backend is None:
        return
    check_attention(backend)
    for part in module.modules():
        if isinstance(part, diffusers_h3().MiniMaxH3Attention):
            part.set_attention_backend(backend)


def check_attention(backend: str) -> None:
    """Whether this attention backend is known and usable here; see `use_attention`."""
    diffusers_h3()
    from diffusers.models import attention_dispatch as dispatch

    known = sorted(name.value for name in dispatch.AttentionBackendName)
    if backend not in known:
        raise BadUsage(f"attention backend {backend!r}: diffusers knows {', '.join(known)}.")
    name = dispatch.AttentionBackendName(backend)
    try:
        # What ModelMixin.set_attention_backend does; there is no public way for single modules.
        dispatch._check_attention_backend_requirements(name)
        dispatch._maybe_download_kernel_for_backend(name)
    except (RuntimeError, ImportError) as error:
        raise EnvironmentLacking(f"attention backend {backend!r}: {error}") from error
