"""Multi-head latent attention, absorbed: one compressed key-value a token for all heads."""

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
)
from kclab.core.families.ragged_attention import RAGGED_CONSTRAINTS, ragged_axes, ragged_inputs


def write(h: int, ckv: int, kpe: int, dtype: str) -> Body:
    """The body of `mla_absorbed_{dtype}_h{H}_ckv{CKV}_kpe{KPE}`."""
    name = dtype_of(dtype)
    return {
        "name": f"mla_absorbed_{tag_of(dtype)}_h{h}_ckv{ckv}_kpe{kpe}",
        "op_type": "mla",
        "description": "softmax(scale (q_nope ckv^T + q_pe kpe^T)) ckv within each sequence.",
        "tags": ["stage:absorbed"],
        "axes": {
            **ragged_axes(),
            **latent_axes(h, ckv, kpe),
        },
        "constraints": RAGGED_CONSTRAINTS,
        "inputs": {
            **latent_inputs(name),
            **ragged_inputs(),
        },
        "outputs": latent_outputs(name),
        "reference": read_reference("mla_absorbed"),
        "capture": {"adapter": "deepseek"},
    }


def latent_axes(h: int, ckv: int, kpe: int) -> Body:
    """Sizes of the absorbed form."""
    return {
        "H": const(h, "Query heads."),
        "C": const(ckv, "Size of the compressed key-value."),
        "R": const(kpe, "Size of the rotated part of queries and keys."),
    }


def latent_inputs(dtype: str) -> Body:
    """Queries, and what all heads share a token."""
    return {
        "q_nope": tensor(["Tq", "H", "C"], dtype, "Queries, the key up-projection absorbed."),
        "q_pe": tensor(["Tq", "H", "R"], dtype, "Rotated part of the queries."),
        "ckv": tensor(["Tk", "C"], dtype, "Compressed keys and values of all sequences."),
        "kpe": tensor(["Tk", "R"], dtype, "Rotated keys of all sequences."),
    }


def latent_outputs(dtype: str) -> Body:
    """What the value up-projection is given."""
    return {"O": tensor(["Tq", "H", "C"], dtype, "Before the value up-projection.")}


FAMILY = Family(
    name="mla_absorbed",
    summary="multi-head latent attention over compressed keys and values",
    sizes=("h", "ckv", "kpe"),
    options={"dtype": "bf16"},
    write=write,
    names=re.compile(r"mla_absorbed_(bf16|fp16|fp32)_h\d+_ckv\d+_kpe\d+"),
    sources=("mla_absorbed",),
)
