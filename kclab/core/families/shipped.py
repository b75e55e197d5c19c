"""The instances that kclab ships as files in `definitions/`: real models at their real sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kclab.core.definition import Definition
from kclab.core.families import FAMILIES

QWEN_IMAGE_21_LINEARS = (
    (4096, 64),  # img_in: 64 latent channels
    (4096, 256),  # the timestep embedder's first layer
    (4096, 4096),  # to_q, to_k, to_v, to_out, txt_in, norm_out, the timestep embedder's second
    (12288, 4096),  # SwiGLU's gate and up (MLP ratio 3); also Q, K and V packed, 3 x 4096
    (4096, 12288),  # SwiGLU's down
    (16384, 4096),  # the modulation: two scales and two gates
    (64, 4096),  # proj_out
)
"""(n, k) of every linear of Qwen-Image-2.1: 32 heads of 128, hidden size 4096, none with a bias."""

INSTANCES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(("dense_gemm", {"n": n, "k": k, "dtype": "bf16"}) for n, k in QWEN_IMAGE_21_LINEARS),
    *(("prefix_cached_block_causal", {"h": 32, "d": 128, "prefix": p}) for p in (True, False)),
    *((f"gated_delta_rule_{s}", {"qk": 4, "v": 8, "d": 128}) for s in ("prefill", "decode")),
)
"""(family, parameters) of each shipped file."""


def shipped_definitions() -> list[Definition]:
    """What `definitions/` must hold, as the families write it."""
    return [FAMILIES[family].make(**parameters) for family, parameters in INSTANCES]
