"""Attention of several sequences side by side, as serving engines batch them.

What an engine keeps in pages becomes each sequence's keys and values in order, those of the tokens
being computed last. Decode is the case of one query a sequence.
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


def write(h: int, d: int, dtype: str, kv: int | None, dv: int | None) -> Body:
    """The body of `ragged_attention_{dtype}_h{H}_kv{KV}_d{D}[_dv{DV}]`, sizes as in sdpa."""
    kv, dv = h if kv is None else kv, d if dv is None else dv
    require_size("kv", kv)
    require_size("dv", dv)
    if h % kv:
        raise BadUsage(f"ragged attention: {h} query heads cannot share {kv} key heads evenly.")
    suffix = f"_dv{dv}" if dv != d else ""
    name = dtype_of(dtype)
    return {
        "name": f"ragged_attention_{tag_of(dtype)}_h{h}_kv{kv}_d{d}{suffix}",
        "op_type": "ragged_attention",
        "description": "softmax(scale Q K^T) V within each sequence.",
        "axes": {
            **ragged_axes(),
            "H": const(h, "Query heads."),
            "Hkv": const(kv, "Key and value heads; each serves H / Hkv query heads."),
            "D": const(d, "Size of a query or key head."),
            "Dv": const(dv, "Size of a value head."),
        },
        "constraints": RAGGED_CONSTRAINTS,
        "inputs": {
            "Q": tensor(["Tq", "H", "D"], name, "Queries of all sequences."),
            "K": tensor(["Tk", "Hkv", "D"], name, "Keys of all sequences."),
            "V": tensor(["Tk", "Hkv", "Dv"], name, "Values of all sequences."),
            **ragged_inputs(),
        },
        "outputs": {"O": tensor(["Tq", "H", "Dv"], name, "The attention's output.")},
        "reference": read_reference("ragged_attention"),
        "capture": {"adapter": "qwen-next"},
    }


RAGGED_CONSTRAINTS = ["Tq == qo_indptr[-1].item()", "Tk == kv_indptr[-1].item()"]


def ragged_axes() -> Body:
    """Axes of sequences side by side."""
    return {
        "Tq": var("Queries of all sequences together."),
        "Tk": var("Keys of all sequences together."),
        "N1": var("Sequences, and one more."),
    }


def ragged_inputs() -> Body:
    """Where sequences begin and end, and how they attend."""
    return {
        "qo_indptr": tensor(["N1"], "int32", "Where each sequence's queries begin; ends."),
        "kv_indptr": tensor(["N1"], "int32", "Where each sequence's keys begin; ends."),
        "is_causal": tensor(None, "bool", "Whether a query sees no later token's key."),
        "sm_scale": tensor(None, "float32", "Multiplies the scores."),
    }


FAMILY = Family(
    name="ragged_attention",
    summary="attention of several sequences side by side",
    sizes=("h", "d"),
    options={"dtype": "bf16", "kv": None, "dv": None},
    write=write,
    names=re.compile(r"ragged_attention_(bf16|fp16|fp32)_h\d+_kv\d+_d\d+(_dv\d+)?"),
    sources=("ragged_attention",),
)
