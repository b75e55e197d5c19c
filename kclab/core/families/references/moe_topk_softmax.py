"""A mixture of experts' choice of experts and their weights by softmax, as in Qwen3-MoE."""

import torch


def run(
    logits: torch.Tensor, top_k: int, renormalize: bool, routed_scaling_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, E]; (topk_weights [T, K] wide, topk_ids [T, K] int32).

    Softmax over the experts, of which the K largest stay; equal scores go to the lower id. Experts
    come in ascending order of their ids.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = torch.softmax(logits.to(wide), dim=-1)
    order = scores.sort(dim=1, descending=True, stable=True).indices
    ids = order[:, :top_k].sort(dim=1).values
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return weights * routed_scaling_factor, ids.to(torch.int32)
