"""A gate for each head, on an attention's output before its projection."""

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


def write(h: int, d: int, dtype: str) -> Body:
    """The body of `head_gate_{dtype}_h{H}_d{D}`."""
    name = dtype_of(dtype)
    return {
        "name": f"head_gate_{tag_of(dtype)}_h{h}_d{d}",
        "op_type": "head_gate",
        "description": "Each head's output times twice the sigmoid of its gate.",
        "axes": {
            "B": var("Batch."),
            "S": var("Tokens."),
            "H": const(h, "Heads."),
            "D": const(d, "Size of a head."),
        },
        "inputs": {
            "x": tensor(["B", "S", "H", "D"], name, "The attention's output."),
            "gate_logits": tensor(["B", "S", "H"], name, "Gates before the sigmoid."),
        },
        "outputs": {"y": tensor(["B", "S", "H", "D"], name, "The gated output.")},
        "reference": read_reference("head_gate"),
        "capture": {"adapter": "ltx"},
    }


FAMILY = Family(
    name="head_gate",
    summary="an attention's output times 2 sigmoid(gate) for each head",
    sizes=("h", "d"),
    options={"dtype": "bf16"},
    write=write,
    names=re.compile(r"head_gate_(bf16|fp16|fp32)_h\d+_d\d+"),
    sources=("head_gate",),
)
