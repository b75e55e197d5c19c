"""Block-causal attention over text and images, with or without a cached prefix.

The joint sequence is causal, and each image in it sees itself whole; the image being made is the
last one and takes the id after those of the prefix. `_prefix0` is the same operator with a prefix
of no rows, as the first step runs it.
"""

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


def write(h: int, d: int, dtype: str, prefix: bool) -> Body:
    """The body of `prefix_cached_block_causal[_{fp16|fp32}]_h{H}_d{D}[_prefix0]`."""
    tag = "" if tag_of(dtype) == "bf16" else f"_{tag_of(dtype)}"
    body = {
        "name": f"prefix_cached_block_causal{tag}_h{h}_d{d}{'' if prefix else '_prefix0'}",
        "op_type": "prefix_cached_block_causal",
        "description": "Attention where a token sees every earlier one and all of its own image.",
        "axes": _axes(h, d, prefix),
        "inputs": _inputs(dtype_of(dtype), "S_total" if prefix else "S_current"),
        "outputs": {
            "O": tensor(["B", "S_current", "H", "D"], dtype_of(dtype), "The attention's output.")
        },
        "reference": read_reference("prefix_cached_block_causal"),
        "capture": {"adapter": "qwen-image"},
    }
    if prefix:
        body["constraints"] = ["S_total == S_prefix + S_current"]
    return body


def _axes(h: int, d: int, prefix: bool) -> Body:
    axes = {
        "B": var("Batch."),
        "S_current": var("Tokens computed now; all of them are queries."),
        "S_prefix": var("Tokens cached before.") if prefix else const(0, "No prefix."),
        "H": const(h, "Heads."),
        "D": const(d, "Size of a head."),
    }
    if prefix:
        axes["S_total"] = var("Prefix and current tokens together.")
    return axes


def _inputs(dtype: str, total: str) -> Body:
    current, prefix = ["B", "S_current", "H", "D"], ["B", "S_prefix", "H", "D"]
    return {
        "Q": tensor(current, dtype, "Queries, normalised and rotated."),
        "K_current": tensor(current, dtype, "Keys of the same tokens."),
        "V_current": tensor(current, dtype, "Values of the same tokens."),
        "K_prefix": tensor(prefix, dtype, "Cached keys of the tokens before."),
        "V_prefix": tensor(prefix, dtype, "Cached values of the tokens before."),
        "image_ids": tensor([total], "int32", "-1 for text, else which image a token is of."),
        "key_valid": tensor(["B", total], "bool", "False for padding, which no token sees."),
        "sm_scale": tensor(None, "float32", "Multiplies the scores; 1 / sqrt(D)."),
    }


FAMILY = Family(
    name="prefix_cached_block_causal",
    summary="block-causal attention over a cached prefix (prefix=false: none)",
    sizes=("h", "d"),
    options={"dtype": "bf16", "prefix": True},
    write=write,
    names=re.compile(r"prefix_cached_block_causal(_fp16|_fp32)?_h\d+_d\d+(_prefix0)?"),
    sources=("prefix_cached_block_causal",),
)
