"""A choice of experts and their weights by biased sigmoid, within the best groups of experts."""

import torch


def run(
    logits: torch.Tensor,
    top_k: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: torch.Tensor,
    num_groups: int,
    top_groups: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, E], bias [E]; (topk_weights [T, K] wide, topk_ids [T, K] int32).

    DeepSeek-V3's noaux_tc: the bias counts in the choice and not in the weights; of the groups of
    experts, the `top_groups` whose two best have the largest sum stay; of those, the K largest.
    Equal scores go to the lower id. Experts come in ascending order of their ids.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = torch.sigmoid(logits.to(wide))
    wanted = keep_groups(scores + bias.to(wide), num_groups, top_groups)
    ids = largest(wanted, top_k).sort(dim=1).values
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return weights * routed_scaling_factor, ids.to(torch.int32)


def largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest of each row; among equals the lower."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def keep_groups(scores: torch.Tensor, groups: int, stay: int) -> torch.Tensor:
    """The scores, minus infinity in groups that do not stay."""
    grouped = scores.view(scores.shape[0], groups, -1)
    best = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(dim=2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, largest(best, stay), True)
    return grouped.masked_fill(~kept[:, :, None], float("-inf")).flatten(1)
