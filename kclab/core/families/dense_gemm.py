"""Dense GEMM as linear layers call it: activations times a weight stored [N, K]."""

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


def write(n: int, k: int, dtype: str, bias: bool) -> Body:
    """The body of `dense_gemm_{bf16|fp16|fp32}_nt[_bias]_n{N}_k{K}`."""
    name = dtype_of(dtype)
    inputs = {
        "A": tensor(["M", "K"], name, "Activations, one row a token."),
        "W": tensor(["N", "K"], name, "Weight, as nn.Linear stores it."),
    }
    if bias:
        inputs["bias"] = tensor(["N"], name, "Added to every row.")
    return {
        "name": f"dense_gemm_{tag_of(dtype)}_nt{'_bias' if bias else ''}_n{n}_k{k}",
        "op_type": "dense_gemm",
        "description": f"C = A W^T{' + bias' if bias else ''}, accumulated in float32 or wider.",
        "tags": ["layout:nt"],
        "axes": {
            "M": var("Rows: tokens of all requests together."),
            "N": const(n, "Output features."),
            "K": const(k, "Input features; summed over."),
        },
        "inputs": inputs,
        "outputs": {"C": tensor(["M", "N"], name, "The product.")},
        "reference": read_reference("dense_gemm_bias" if bias else "dense_gemm"),
        "capture": {"adapter": "torch"},
    }


FAMILY = Family(
    name="dense_gemm",
    summary="C = A W^T (+ bias)",
    sizes=("n", "k"),
    options={"dtype": "bf16", "bias": False},
    write=write,
    names=re.compile(r"dense_gemm_(bf16|fp16|fp32)_nt(_bias)?_n\d+_k\d+"),
    sources=("dense_gemm", "dense_gemm_bias"),
    earlier=("4460b62de74486ac1f32b823335af76cd7fcb5807b28b3b37bdf2d5af1f67420",),
)
