"""GEMM over block-scaled FP8, as DeepSeek-V3's linear layers: activations quantised on the way."""

from __future__ import annotations

import re

from kclab.core.families.family import (
    Body,
    Family,
    const,
    dtype_of,
    read_reference,
    tag_of,
    tensor,
    var,
)


def write(n: int, k: int, dtype: str) -> Body:
    """The body of `block_scaled_gemm_fp8_{dtype}_n{N}_k{K}`."""
    name = dtype_of(dtype)
    return {
        "name": f"block_scaled_gemm_fp8_{tag_of(dtype)}_n{n}_k{k}",
        "op_type": "block_scaled_gemm",
        "description": "C = A W^T; A quantised by 1 x 128 values, W by 128 x 128.",
        "tags": ["layout:nt", "precision:fp8_e4m3"],
        "axes": {
            "M": var("Rows: tokens of all requests together."),
            "N": const(n, "Output features."),
            "K": const(k, "Input features; summed over."),
            "Nb": const(-(-n // 128), "Blocks of 128 output features."),
            "Kb": const(-(-k // 128), "Blocks of 128 input features."),
        },
        "inputs": {
            "A": tensor(["M", "K"], name, "Activations, not quantised yet."),
            "W": tensor(["N", "K"], "float8_e4m3fn", "Weight, as nn.Linear stores it."),
            "W_scale": tensor(["Nb", "Kb"], "float32", "Multiplies 128 x 128 values of W."),
            "power_of_two_scales": tensor(None, "bool", "Whether A's scales are UE8M0."),
        },
        "outputs": {"C": tensor(["M", "N"], name, "The product.")},
        "reference": read_reference("block_scaled_gemm"),
        # Kernels keep about 14 bits of partial sums.
        "tolerance": {"C": {"rtol": 0.03, "atol": 0.03}},
        "capture": {"adapter": "deepseek"},
    }


FAMILY = Family(
    name="block_scaled_gemm",
    summary="C = A W^T over block-scaled FP8",
    sizes=("n", "k"),
    options={"dtype": "bf16"},
    write=write,
    names=re.compile(r"block_scaled_gemm_fp8_(bf16|fp16|fp32)_n\d+_k\d+"),
    sources=("block_scaled_gemm",),
)
