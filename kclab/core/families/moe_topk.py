"""A mixture of experts' routing: from the router's logits to experts and weights.

Kernels list a token's experts in any order, so both outputs are in ascending order of expert ids.
"""

from __future__ import annotations

import re
from typing import Any

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


def write_softmax(e: int, k: int, dtype: str) -> Body:
    """The body of `moe_topk_softmax_{dtype}_e{E}_k{K}`."""
    return _body("softmax", f"softmax_{tag_of(dtype)}", e, k, dtype, {})


def write_grouped_sigmoid(e: int, k: int, groups: int, stay: int, dtype: str) -> Body:
    """The body of `moe_topk_sigmoid_{dtype}_e{E}_k{K}_g{GROUPS}_of{STAY}`."""
    if e % groups or stay > groups:
        raise BadUsage(f"moe top-k: {stay} of {groups} groups do not fit {e} experts.")
    require_size("groups", groups)
    more = {
        "bias": tensor(["E"], "float32", "Added for the choice alone: e_score_correction_bias."),
        "num_groups": tensor(None, "int32", "Groups of experts."),
        "top_groups": tensor(None, "int32", "Groups that a token may choose from."),
    }
    kind = f"sigmoid_{tag_of(dtype)}"
    body = _body("grouped_sigmoid", kind, e, k, dtype, more)
    return body | {"name": f"{body['name']}_g{groups}_of{stay}"}


def _body(rule: str, kind: str, e: int, k: int, dtype: str, more: dict[str, Any]) -> Body:
    if k > e:
        raise BadUsage(f"moe top-k: cannot choose {k} of {e} experts.")
    return {
        "name": f"moe_topk_{kind}_e{e}_k{k}",
        "op_type": "moe_topk",
        "description": "Choose experts by their scores, and weigh them.",
        "axes": {
            "T": var("Tokens."),
            "E": const(e, "Experts."),
            "K": const(k, "Experts that each token chooses."),
        },
        "inputs": {
            "logits": tensor(["T", "E"], dtype_of(dtype), "The router's logits."),
            "top_k": tensor(None, "int32", "K."),
            "renormalize": tensor(None, "bool", "Whether a token's weights sum to 1."),
            "routed_scaling_factor": tensor(None, "float32", "Multiplies the weights."),
            **more,
        },
        "outputs": {
            "topk_weights": tensor(["T", "K"], "float32", "The chosen experts' weights."),
            "topk_ids": tensor(["T", "K"], "int32", "The chosen experts, ascending."),
        },
        "reference": read_reference(f"moe_topk_{rule}"),
        # Some kernels compute the scores in the logits' dtype.
        **({} if tag_of(dtype) == "fp32" else {"tolerance": {"topk_weights": TOLERANCE}}),
    }


TOLERANCE = {"rtol": 0.016, "atol": 1e-3}
EARLIER = ("e68135cf12fae1cc8d237b6648e80a81f57c7c02b8953132877fc46c867a50d1",)

SOFTMAX = Family(
    name="moe_topk_softmax",
    summary="choose experts by softmax",
    sizes=("e", "k"),
    options={"dtype": "bf16"},
    write=write_softmax,
    names=re.compile(r"moe_topk_softmax_(bf16|fp16|fp32)_e\d+_k\d+"),
    sources=("moe_topk_softmax",),
    earlier=EARLIER,
)

GROUPED_SIGMOID = Family(
    name="moe_topk_grouped_sigmoid",
    summary="choose experts by biased sigmoid within the best groups",
    sizes=("e", "k", "groups", "stay"),
    options={"dtype": "fp32"},
    write=write_grouped_sigmoid,
    names=re.compile(r"moe_topk_sigmoid_(bf16|fp16|fp32)_e\d+_k\d+_g\d+_of\d+"),
    sources=("moe_topk_grouped_sigmoid",),
    earlier=EARLIER,
)
