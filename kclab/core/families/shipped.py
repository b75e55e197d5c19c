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

QWEN3_NEXT: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gated_delta_rule_extend", {"qk": 16, "v": 32, "d": 128}),
    ("gated_delta_rule_update", {"qk": 16, "v": 32, "d": 128}),
    ("ragged_attention", {"h": 16, "kv": 2, "d": 256}),
    ("moe_topk_softmax", {"e": 512, "k": 10}),
    ("dense_gemm", {"n": 512, "k": 2048, "dtype": "bf16"}),  # the router
)
"""Qwen3-Next-80B-A3B on one device."""

DEEPSEEK_V3_BLOCK_SCALED = (
    (2112, 7168),  # q_a and kv_a projections together, 1536 + 576
    (24576, 1536),  # q_b: 128 heads of 192
    (32768, 512),  # kv_b: 128 heads of 128 + 128
    (7168, 16384),  # o
    (36864, 7168),  # gate and up of a dense layer
    (7168, 18432),  # down of a dense layer
    (4096, 7168),  # gate and up of the shared expert
    (7168, 2048),  # down of the shared expert
)
"""(n, k) of DeepSeek-V3's linear layers on one device."""

DEEPSEEK_V3: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("mla_absorbed", {"h": 128, "ckv": 512, "kpe": 64}),
    ("mla_absorbed", {"h": 16, "ckv": 512, "kpe": 64}),  # over 8 devices
    ("mla_sparse", {"h": 128, "ckv": 512, "kpe": 64, "topk": 2048}),  # V3.2
    ("mla_sparse", {"h": 16, "ckv": 512, "kpe": 64, "topk": 2048}),
    ("ragged_attention", {"h": 128, "d": 192, "dv": 128}),
    ("ragged_attention", {"h": 16, "d": 192, "dv": 128}),
    *(
        ("moe_topk_grouped_sigmoid", {"e": 256, "k": 8, "groups": 8, "stay": 4, "dtype": dtype})
        for dtype in ("fp32", "bf16")
    ),
    ("dense_gemm", {"n": 256, "k": 7168, "dtype": "bf16"}),  # the router
    *(("block_scaled_gemm", {"n": n, "k": k}) for n, k in DEEPSEEK_V3_BLOCK_SCALED),
)
"""DeepSeek-V3, R1 and V3.1; V3.2 with its choice of keys."""

LTX_25_PLAIN = ((16384, 4096), (4096, 16384))
"""(n, k) of the video's feed-forward."""
LTX_25_BIASED = (
    (4096, 4096),  # the video's attention to itself and to its prompt
    (2048, 2048),  # the audio's; keys and values of audio for the video
    (2048, 4096),  # the video's queries to the audio, its keys and values for the audio
    (4096, 2048),  # what the video hears, back to its size
    (32, 4096),  # head gates
    (32, 2048),
    (8192, 2048),  # the audio's feed-forward
    (2048, 8192),
)
"""(n, k) of a block's linears that have a bias."""
LTX_25: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("sdpa", {"h": 32, "d": 128}),  # video, and video to its prompt
    ("sdpa", {"h": 32, "d": 128, "mask": "float"}),
    ("sdpa", {"h": 32, "d": 64}),  # audio, its prompt, and both ways between
    ("sdpa", {"h": 32, "d": 64, "mask": "float"}),
    ("head_gate", {"h": 32, "d": 128}),
    ("head_gate", {"h": 32, "d": 64}),
    *(("dense_gemm", {"n": n, "k": k, "dtype": "bf16"}) for n, k in LTX_25_PLAIN),
    *(("dense_gemm", {"n": n, "k": k, "dtype": "bf16", "bias": True}) for n, k in LTX_25_BIASED),
)
"""LTX-2.5: video 32 heads of 128, audio 32 of 64, hidden sizes 4096 and 2048."""

MINIMAX_H3: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("fc2_bf16", {"n": 5376, "k": 14336}),
    ("fc2_nvfp4", {"n": 5376, "k": 14336}),
    ("ragged_attention", {"h": 56, "d": 128}),
)
"""MiniMax-H3: 56 heads of 128, hidden size 5376, feed-forward size 14336."""

INSTANCES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(("dense_gemm", {"n": n, "k": k, "dtype": "bf16"}) for n, k in QWEN_IMAGE_21_LINEARS),
    *(("prefix_cached_block_causal", {"h": 32, "d": 128, "prefix": p}) for p in (True, False)),
    *((f"gated_delta_rule_{s}", {"qk": 4, "v": 8, "d": 128}) for s in ("prefill", "decode")),
    *QWEN3_NEXT,
    *DEEPSEEK_V3,
    *LTX_25,
    *MINIMAX_H3,
)
"""(family, parameters) of each shipped file."""


def shipped_definitions() -> list[Definition]:
    """What `definitions/` must hold, as the families write it."""
    return [FAMILIES[family].make(**parameters) for family, parameters in INSTANCES]
