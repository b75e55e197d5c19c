"""A mixture of experts' routing in SGLang: `select_experts`, which every model's TopK calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kclab.capture.adapters import Sighting, Uncaptured
from kclab.capture.adapters.torch_gemm import TAGS

MODULE = "sglang.srt.layers.moe.topk"
NAME = "select_experts"
WHAT = "moe routing"


def see_routing(arguments: Mapping[str, Any]) -> Sighting | Uncaptured | None:
    """One call of `select_experts`: logits to weights and expert ids."""
    config, logits = arguments["topk_config"], arguments["router_logits"]
    refused = _refusal(arguments, config)
    if refused is not None:
        return Uncaptured(WHAT, refused)
    bias = config.correction_bias
    sizes = {"e": logits.shape[1], "k": config.top_k, "dtype": TAGS[logits.dtype]}
    inputs: dict[str, Any] = {
        "logits": logits,
        "top_k": int(config.top_k),
        "renormalize": bool(config.renormalize),
        "routed_scaling_factor": _scaling(config),
    }
    family = "moe_topk_softmax"
    if bias is not None:
        family = "moe_topk_grouped_sigmoid"
        groups, stay = int(config.num_expert_group or 1), int(config.topk_group or 1)
        sizes |= {"groups": groups, "stay": stay}
        inputs |= {"bias": bias.float(), "num_groups": groups, "top_groups": stay}
    return Sighting(
        family=family,
        sizes=sizes,
        inputs=inputs,
        outputs=ascending,
        operation=NAME,
        receipt={"layer": arguments.get("layer_id"), "adapter": "Experts sorted by their ids."},
    )


def _refusal(arguments: Mapping[str, Any], config: Any) -> str | None:
    logits = arguments["router_logits"]
    scoring = getattr(config, "scoring_func", "softmax")
    biased = config.correction_bias is not None
    reasons = {
        f"dtype {str(logits.dtype).removeprefix('torch.')}": logits.dtype not in TAGS,
        "a routing function of the model's own": config.custom_routing_function is not None,
        "experts placed elsewhere": arguments.get("expert_location_dispatch_info") is not None,
        "padded tokens": _is_padded(arguments.get("num_token_non_padded"), logits.shape[0]),
        "shared experts among the routed": bool(getattr(config, "num_shared_topk_slots", 0)),
        "logits in parts": arguments.get("router_logits_partials") is not None,
        "a bias for each token": arguments.get("dynamic_expert_bias") is not None,
        f"scores by {scoring}": scoring not in (("softmax", "sigmoid") if biased else ("softmax",)),
        "bias without groups": biased and not config.use_grouped_topk and scoring == "softmax",
        "groups without a bias": config.use_grouped_topk and not biased,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_padded(count: Any, rows: int) -> bool:
    return count is not None and int(count) < rows


def _scaling(config: Any) -> float:
    if not config.apply_routed_scaling_factor_on_output or config.routed_scaling_factor is None:
        return 1.0
    return float(config.routed_scaling_factor)


def ascending(result: Any) -> dict[str, Tensor]:
    """Weights and ids with each token's experts in ascending order."""
    ids, order = result.topk_ids.to(torch.int32).sort(dim=1)
    return {"topk_weights": result.topk_weights.float().gather(1, order), "topk_ids": ids}
