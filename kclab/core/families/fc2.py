"""FC2 of a transformer's MLP, over operands as cuBLASLt takes them; one family a precision."""

from __future__ import annotations

import re

from kclab.core.errors import BadUsage
from kclab.core.families.family import Body, Family, const, read_reference, tensor, var


def write_bf16(n: int, k: int) -> Body:
    """The body of `fc2_bf16_n{N}_k{K}`."""
    return _body("bf16", n, k, _matrices("bfloat16", "K"), {})


def write_fp8(n: int, k: int) -> Body:
    """The body of `fc2_fp8_n{N}_k{K}`."""
    inputs = _matrices("float8_e4m3fn", "K") | {
        "activation_scale": tensor(["S"], "float32", "The activation's scale."),
        "weight_scale": tensor(["S"], "float32", "The weight's scale."),
        "rows": tensor(None, "int32", "Logical rows; the others are padding."),
        "fast_accumulation": tensor(
            None, "bool", "Whether products may be summed below float32; part of the boundary."
        ),
    }
    axes = {"S": const(1, "One scale a tensor.")}
    # Fast accumulation keeps about 14 bits of each partial sum.
    return _body("fp8", n, k, inputs, axes) | {"tolerance": {"C": {"rtol": 0.03, "atol": 0.03}}}


def write_nvfp4(n: int, k: int) -> Body:
    """The body of `fc2_nvfp4_n{N}_k{K}`. K must be a multiple of 32."""
    if k % 32:
        raise BadUsage(f"size k must be a multiple of 32 for nvfp4; found {k}.")
    one = ["S"]
    inputs = _matrices("uint8", "H") | {
        "activation_scale": tensor(
            ["P", "B"], "float8_e4m3fn", "UE4M3, one for 16 values along K, in the 128x4 layout."
        ),
        "weight_scale": tensor(["Q", "B"], "float8_e4m3fn", "The same for the weight."),
        "rows": tensor(None, "int32", "Logical rows; the others are padding."),
        "alpha": tensor(one, "float32", "Product of both tensor scales."),
        "activation_tensor_scale": tensor(one, "float32", "Largest magnitude / 2688."),
        "weight_tensor_scale": tensor(one, "float32", "The checkpoint's weight_scale_2."),
    }
    axes = {
        "H": const(k // 2, "Bytes a row: two E2M1 codes each, the even element high."),
        "P": var("Rows rounded up to 128."),
        "Q": const(-(-n // 128) * 128, "N rounded up to 128."),
        "B": const(-(-k // 64) * 4, "K / 16 rounded up to 4."),
        "S": const(1, "One scale a tensor."),
    }
    return _body("nvfp4", n, k, inputs, axes)


def _matrices(dtype: str, inner: str) -> Body:
    return {
        "activation": tensor(["M", inner], dtype, "The MLP's inner activation, padded rows last."),
        "weight": tensor(["N", inner], dtype, "FC2's weight, as nn.Linear stores it."),
    }


def _body(precision: str, n: int, k: int, inputs: Body, axes: Body) -> Body:
    common = {
        "M": var("Rows: tokens of all requests together, padded as cuBLAS wants them."),
        "N": const(n, "Output features: the hidden size."),
    }
    if precision != "nvfp4":
        common["K"] = const(k, "Input features; summed over.")
    return {
        "name": f"fc2_{precision}_n{n}_k{k}",
        "op_type": "fc2",
        "description": f"C = activation W^T, {precision} operands, bfloat16 output.",
        "tags": ["layout:nt", f"precision:{precision}"],
        "axes": common | axes,
        "inputs": inputs,
        "outputs": {"C": tensor(["M", "N"], "bfloat16", "The product.")},
        "reference": read_reference(f"fc2_{precision}"),
        "capture": {"adapter": "fc2"},
    }


FAMILIES = tuple(
    Family(
        name=f"fc2_{precision}",
        summary=f"FC2 with {precision} operands",
        sizes=("n", "k"),
        options={},
        write=write,
        names=re.compile(rf"fc2_{precision}_n\d+_k\d+"),
        sources=(f"fc2_{precision}",),
        earlier=("28296f847354baec2ff21139b4bab391194e59eeebaf9126091d0acd58b8a977",),
    )
    for precision, write in (("bf16", write_bf16), ("fp8", write_fp8), ("nvfp4", write_nvfp4))
)
"""`fc2_bf16`, `fc2_fp8` and `fc2_nvfp4`."""
