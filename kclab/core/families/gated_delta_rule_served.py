"""The gated delta rule as serving engines call it, with a k-last state for each sequence.

Prefill (`gdn_extend`) is given the gates: the log of the decay and the write strength. Decode
(`gdn_update`) makes them itself. Both normalise q and k inside where `qk_l2norm` says so. An
engine's pool of states and the indices into it become one state a sequence, before and after.
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
    tag_of,
    tensor,
    var,
)

STATE = "state"
_HEADS = {"q": "num_q_heads", "k": "num_k_heads", "v": "num_v_heads"}


def write_extend(qk: int, v: int, d: int, dtype: str, state: str) -> Body:
    """The body of `gdn_extend[_{dtype}]_qk{QK}_v{V}_d{D}_k_last[_state_{dtype}]`."""
    lead, gates = ["total_seq_len"], ["total_seq_len", "num_v_heads"]
    inputs = _inputs(lead, "num_seqs", dtype, state) | {
        "g": tensor(gates, "float32", "Log of each token's decay."),
        "beta": tensor(gates, "float32", "How much of the error each token writes."),
        "cu_seqlens": tensor(["len_cu_seqlens"], "int32", "Where each sequence begins; ends."),
    }
    axes = {
        "total_seq_len": var("Tokens of all sequences together."),
        "num_seqs": var("Sequences."),
        **_const_axes(qk, v, d),
        "len_cu_seqlens": var("num_seqs + 1."),
    }
    body = _body("extend", axes, inputs, _outputs(lead, "num_seqs", dtype, state), dtype, state)
    # Chunked kernels round a chunk's operands to bfloat16, so no elementwise bound fits.
    wide = tag_of(state) == "fp32"
    return {
        **body,
        "constraints": [
            "len_cu_seqlens == num_seqs + 1",
            "total_seq_len == cu_seqlens[-1].item()",
        ],
        **({"tolerance": {"new_state": {"policy": "gdn_prefill_state"}}} if wide else {}),
    }


def write_update(qk: int, v: int, d: int, dtype: str, state: str) -> Body:
    """The body of `gdn_update[_{dtype}]_qk{QK}_v{V}_d{D}_k_last[_state_{dtype}]`."""
    lead, gates = ["batch_size"], ["batch_size", "num_v_heads"]
    inputs = _inputs(lead, "batch_size", dtype, state) | {
        "A_log": tensor(["num_v_heads"], "float32", "Log of the decay rate."),
        "a": tensor(gates, dtype_of(dtype), "What each token adds to the decay."),
        "dt_bias": tensor(["num_v_heads"], "float32", "Added to a before softplus."),
        "b": tensor(gates, dtype_of(dtype), "Write gate before sigmoid."),
    }
    axes = {"batch_size": var("Sequences, one token each."), **_const_axes(qk, v, d)}
    outputs = _outputs(lead, "batch_size", dtype, state)
    body = _body("update", axes, inputs, outputs, dtype, state)
    # One engine's kernel rounds the write gate to b's dtype, so no float32 bound fits.
    rounded = tag_of(state) == "fp32" and tag_of(dtype) != "fp32"
    return {
        **body,
        **({"tolerance": {"new_state": {"policy": "gdn_update_state"}}} if rounded else {}),
    }


def _body(stage: str, axes: Body, inputs: Body, outputs: Body, dtype: str, state: str) -> Body:
    qk, v, d = (axes[n]["value"] for n in ("num_q_heads", "num_v_heads", "head_size"))
    if v % qk:
        raise BadUsage(f"gated delta rule: {v} value heads cannot share {qk} key heads evenly.")
    tag = "" if tag_of(dtype) == "bf16" else f"_{tag_of(dtype)}"
    kept = "" if tag_of(state) == "fp32" else f"_state_{tag_of(state)}"
    flags = {
        "scale": tensor(None, "float32", "Multiplies the output; 1 / sqrt(head_size)."),
        "qk_l2norm": tensor(None, "bool", "Whether q and k are normalised first."),
    }
    return {
        "name": f"gdn_{stage}{tag}_qk{qk}_v{v}_d{d}_k_last{kept}",
        "op_type": "gdn",
        "description": "The gated delta rule: decay the state, write what it does not predict.",
        "tags": [f"stage:{stage}", "layout:k-last"],
        "axes": axes,
        "inputs": inputs | flags,
        "outputs": outputs,
        "reference": read_reference(f"gated_delta_rule_{stage}"),
        "capture": {"adapter": "qwen-next"},
    }


def _const_axes(qk: int, v: int, d: int) -> Body:
    return {
        "num_q_heads": const(qk, "Query heads."),
        "num_k_heads": const(qk, "Key heads."),
        "num_v_heads": const(v, "Value heads, states and outputs."),
        "head_size": const(d, "Size of a head: K of queries and keys, V of values."),
    }


def _state(sequences: str, state: str, description: str) -> Body:
    shape = [sequences, "num_v_heads", "head_size", "head_size"]
    return tensor(shape, dtype_of(state), description)


def _inputs(lead: list[str], sequences: str, dtype: str, state: str) -> Body:
    about = {"q": "Queries.", "k": "Keys.", "v": "Values."}
    return {
        **{n: tensor([*lead, _HEADS[n], "head_size"], dtype_of(dtype), about[n]) for n in about},
        "state": _state(sequences, state, "State before, [N, H, V, K]."),
    }


def _outputs(lead: list[str], sequences: str, dtype: str, state: str) -> Body:
    shape = [*lead, "num_v_heads", "head_size"]
    return {
        "output": tensor(shape, dtype_of(dtype), "The rule's output."),
        "new_state": _state(sequences, state, "State after, [N, H, V, K]."),
    }


_NAMES = r"(_fp16|_fp32)?_qk\d+_v\d+_d\d+_k_last(_state_bf16|_state_fp16)?"

EXTEND = Family(
    name="gated_delta_rule_extend",
    summary="gated delta rule over whole sequences, gates given",
    sizes=("qk", "v", "d"),
    options={"dtype": "bf16", "state": "fp32"},
    write=write_extend,
    names=re.compile(f"gdn_extend{_NAMES}"),
    sources=("gated_delta_rule_extend",),
)

UPDATE = Family(
    name="gated_delta_rule_update",
    summary="gated delta rule, one token a sequence, q and k normalised inside",
    sizes=("qk", "v", "d"),
    options={"dtype": "bf16", "state": "fp32"},
    write=write_update,
    names=re.compile(f"gdn_update{_NAMES}"),
    sources=("gated_delta_rule_update",),
)
