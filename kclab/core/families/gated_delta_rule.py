"""The gated delta rule with a k-last state, in the MLSys 2026 contest's interface.

The interface normalises neither q nor k: whoever calls it has done so, or not.
"""

from __future__ import annotations

import re

from kclab.core.errors import BadUsage
from kclab.core.families.family import Body, Family, const, read_reference, tensor, var

_HEADS = {"q": "num_q_heads", "k": "num_k_heads", "v": "num_v_heads"}


def write_prefill(qk: int, v: int, d: int) -> Body:
    """The body of `gdn_prefill_qk{QK}_v{V}_d{D}_k_last`."""
    axes = {
        "total_seq_len": var("Tokens of all sequences together."),
        "num_seqs": var("Sequences."),
        **_const_axes(qk, v, d),
        "len_cu_seqlens": var("num_seqs + 1."),
    }
    inputs = _inputs(["total_seq_len"], "num_seqs")
    inputs["cu_seqlens"] = tensor(["len_cu_seqlens"], "int64", "Where each sequence begins; ends.")
    inputs["scale"] = _scale()
    return {
        **_body("prefill", qk, v, d),
        "axes": axes,
        "constraints": [
            "len_cu_seqlens == num_seqs + 1",
            "total_seq_len == cu_seqlens[-1].item()",
        ],
        "inputs": inputs,
        "outputs": _outputs(["total_seq_len"], "num_seqs"),
        # Chunked kernels round a chunk's operands to bfloat16, so no elementwise bound fits.
        "tolerance": {"new_state": {"policy": "gdn_prefill_state"}},
    }


def write_decode(qk: int, v: int, d: int) -> Body:
    """The body of `gdn_decode_qk{QK}_v{V}_d{D}_k_last`."""
    axes = {
        "batch_size": var("Sequences, one token each."),
        "seq_len": const(1, "One token."),
        **_const_axes(qk, v, d),
    }
    lead = ["batch_size", "seq_len"]
    return {
        **_body("decode", qk, v, d),
        "axes": axes,
        "inputs": {**_inputs(lead, "batch_size"), "scale": _scale()},
        "outputs": _outputs(lead, "batch_size"),
    }


def _body(stage: str, qk: int, v: int, d: int) -> Body:
    if v % qk:
        raise BadUsage(f"gated delta rule: {v} value heads cannot share {qk} key heads evenly.")
    return {
        "name": f"gdn_{stage}_qk{qk}_v{v}_d{d}_k_last",
        "op_type": "gdn",
        "description": "The gated delta rule: decay the state, write what it does not predict.",
        "tags": [f"stage:{stage}", "layout:k-last"],
        "reference": read_reference(f"gated_delta_rule_{stage}"),
    }


def _const_axes(qk: int, v: int, d: int) -> Body:
    return {
        "num_q_heads": const(qk, "Query heads."),
        "num_k_heads": const(qk, "Key heads."),
        "num_v_heads": const(v, "Value heads, states and outputs."),
        "head_size": const(d, "Size of a head: K of queries and keys, V of values."),
    }


def _inputs(lead: list[str], sequences: str) -> Body:
    about = {"q": "Queries.", "k": "Keys.", "v": "Values."}
    state = ["num_v_heads", "head_size", "head_size"]
    return {
        **{n: tensor([*lead, _HEADS[n], "head_size"], "bfloat16", about[n]) for n in about},
        "state": tensor([sequences, *state], "float32", "State before, [N, H, V, K]."),
        "A_log": tensor(["num_v_heads"], "float32", "Log of the decay rate."),
        "a": tensor([*lead, "num_v_heads"], "bfloat16", "What each token adds to the decay."),
        "dt_bias": tensor(["num_v_heads"], "float32", "Added to a before softplus."),
        "b": tensor([*lead, "num_v_heads"], "bfloat16", "Write gate before sigmoid."),
    }


def _scale() -> Body:
    return tensor(None, "float32", "Multiplies the output; 0 means 1 / sqrt(head_size).")


def _outputs(lead: list[str], sequences: str) -> Body:
    state = [sequences, "num_v_heads", "head_size", "head_size"]
    return {
        "output": tensor([*lead, "num_v_heads", "head_size"], "bfloat16", "The rule's output."),
        "new_state": tensor(state, "float32", "State after, [N, H, V, K]."),
    }


PREFILL = Family(
    name="gated_delta_rule_prefill",
    summary="gated delta rule over whole sequences",
    sizes=("qk", "v", "d"),
    options={},
    write=write_prefill,
    names=re.compile(r"gdn_prefill_qk\d+_v\d+_d\d+_k_last"),
    sources=("gated_delta_rule_prefill",),
)

DECODE = Family(
    name="gated_delta_rule_decode",
    summary="gated delta rule, one token a sequence",
    sizes=("qk", "v", "d"),
    options={},
    write=write_decode,
    names=re.compile(r"gdn_decode_qk\d+_v\d+_d\d+_k_last"),
    sources=("gated_delta_rule_decode",),
)
