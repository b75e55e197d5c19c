"""Scaled-dot-product attention, as `torch.nn.functional.scaled_dot_product_attention` takes it.

What an adapter does to a call to make it fit:

- Q, K and V get exactly four dimensions [B, heads, rows, D]: leading ones are flattened into B; a
  call with three gets B = 1.
- `scale=None` becomes 1 / sqrt(D), and the scalar is always given.
- A mask gets four dimensions by leading ones (each may be 1 and then broadcasts); it is not
  expanded. `heads` of K and V may be fewer than Q's (grouped queries).
- Dropout has no place here: such a call has no definition.
"""

from __future__ import annotations

import re

from kclab.core.errors import BadUsage
from kclab.core.families.family import (
    Body,
    Family,
    const,
    dtype_of,
    read_reference,
    require_size,
    tag_of,
    tensor,
    var,
)

MASKS = ("none", "bool", "float")
"""No mask; bool, true where a query may look; or of Q's dtype, added to the scores."""


def write(h: int, d: int, dtype: str, kv: int | None, dv: int | None, mask: str) -> Body:
    """The body of `sdpa_{dtype}_h{H}_kv{KV}_d{D}[_dv{DV}][_mask_{bool|float}]`.

    `kv` heads of K and V default to `h`, the value size `dv` to `d`.
    """
    kv, dv = h if kv is None else kv, d if dv is None else dv
    require_size("kv", kv)
    require_size("dv", dv)
    if h % kv:
        raise BadUsage(f"sdpa: {h} query heads cannot share {kv} key heads evenly.")
    if mask not in MASKS:
        raise BadUsage(f"sdpa: mask {mask!r} is none of {', '.join(MASKS)}.")
    suffix = (f"_dv{dv}" if dv != d else "") + (f"_mask_{mask}" if mask != "none" else "")
    return {
        "name": f"sdpa_{tag_of(dtype)}_h{h}_kv{kv}_d{d}{suffix}",
        "op_type": "sdpa",
        "description": "softmax(scale Q K^T + mask) V over the keys.",
        "axes": _axes(h, kv, d, dv, mask),
        "inputs": _inputs(dtype_of(dtype), mask),
        "outputs": {
            "O": tensor(["B", "H", "Sq", "Dv"], dtype_of(dtype), "The attention's output.")
        },
        "reference": read_reference("sdpa" if mask == "none" else "sdpa_mask"),
        "capture": {"adapter": "torch"},
    }


def _axes(h: int, kv: int, d: int, dv: int, mask: str) -> Body:
    axes = {
        "B": var("Batch."),
        "Sq": var("Queries."),
        "Sk": var("Keys."),
        "H": const(h, "Query heads."),
        "Hkv": const(kv, "Key and value heads; each serves H / Hkv query heads."),
        "D": const(d, "Size of a query or key head."),
        "Dv": const(dv, "Size of a value head."),
    }
    if mask != "none":
        axes["Mb"] = var("The mask's batch: B, or 1 for all.")
        axes["Mh"] = var("The mask's heads: H, or 1 for all.")
        axes["Mq"] = var("The mask's queries: Sq, or 1 for all.")
        axes["Mk"] = var("The mask's keys: Sk, or 1 for all.")
    return axes


def _inputs(dtype: str, mask: str) -> Body:
    inputs = {
        "Q": tensor(["B", "H", "Sq", "D"], dtype, "Queries."),
        "K": tensor(["B", "Hkv", "Sk", "D"], dtype, "Keys."),
        "V": tensor(["B", "Hkv", "Sk", "Dv"], dtype, "Values."),
        "is_causal": tensor(None, "bool", "Whether query i sees keys 0 to i only."),
        "scale": tensor(None, "float32", "Multiplies the scores."),
    }
    if mask == "bool":
        inputs["mask"] = tensor(["Mb", "Mh", "Mq", "Mk"], "bool", "True where a query may look.")
    elif mask == "float":
        inputs["mask"] = tensor(["Mb", "Mh", "Mq", "Mk"], dtype, "Added to the scaled scores.")
    return inputs


FAMILY = Family(
    name="sdpa",
    summary="softmax(scale Q K^T + mask) V",
    sizes=("h", "d"),
    options={"dtype": "bf16", "kv": None, "dv": None, "mask": "none"},
    write=write,
    names=re.compile(r"sdpa_(bf16|fp16|fp32)_h\d+_kv\d+_d\d+(_dv\d+)?(_mask_(bool|float))?"),
    sources=("sdpa", "sdpa_mask"),
    earlier=("410b335782ace7fbb23a169465ff9eec73d7aa12475a30dd998e080af9e9b52e",),
)
