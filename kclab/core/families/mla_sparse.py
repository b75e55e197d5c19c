"""Multi-head latent attention, absorbed, in which each query chooses its keys (DeepSeek-V3.2)."""

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
from kclab.core.families.mla_absorbed import latent_axes, latent_inputs, latent_outputs


def write(h: int, ckv: int, kpe: int, topk: int, dtype: str) -> Body:
    """The body of `mla_sparse_{dtype}_h{H}_ckv{CKV}_kpe{KPE}_topk{K}`."""
    name = dtype_of(dtype)
    return {
        "name": f"mla_sparse_{tag_of(dtype)}_h{h}_ckv{ckv}_kpe{kpe}_topk{topk}",
        "op_type": "mla",
        "description": "softmax(scale (q_nope ckv^T + q_pe kpe^T)) ckv over each query's own keys.",
        "tags": ["stage:absorbed", "sparse:topk"],
        "axes": {
            "Tq": var("Queries of all sequences together."),
            "Tk": var("Keys of all sequences together."),
            **latent_axes(h, ckv, kpe),
            "K": const(topk, "Keys that a query chooses at most."),
        },
        "inputs": {
            **latent_inputs(name),
            "sparse_indices": tensor(["Tq", "K"], "int32", "Rows of keys; -1 is none."),
            "sm_scale": tensor(None, "float32", "Multiplies the scores."),
        },
        "outputs": latent_outputs(name),
        "reference": read_reference("mla_sparse"),
        "capture": {"adapter": "deepseek"},
    }


FAMILY = Family(
    name="mla_sparse",
    summary="multi-head latent attention over the keys that each query chose",
    sizes=("h", "ckv", "kpe", "topk"),
    options={"dtype": "bf16"},
    write=write,
    names=re.compile(r"mla_sparse_(bf16|fp16|fp32)_h\d+_ckv\d+_kpe\d+_topk\d+"),
    sources=("mla_sparse",),
)
