"""Block-causal attention of current tokens over a cached prefix and themselves."""

import torch

SCORES = 1 << 25
"""Scores held at a time; query rows are taken in blocks that stay below it."""


def run(
    Q: torch.Tensor,
    K_current: torch.Tensor,
    V_current: torch.Tensor,
    K_prefix: torch.Tensor,
    V_prefix: torch.Tensor,
    image_ids: torch.Tensor,
    key_valid: torch.Tensor,
    sm_scale: float,
) -> torch.Tensor:
    """Q, K_current, V_current [B, S, H, D], K_prefix, V_prefix [B, P, H, D]; output as Q.

    `image_ids` [P + S] holds -1 for text and one id per image, `key_valid` [B, P + S] is false for
    padding. A token sees every earlier one, and all of its own image. A token that sees no valid
    key gets zeros.
    """
    wide = torch.promote_types(Q.dtype, torch.float32)
    prefix, current = K_prefix.shape[1], Q.shape[1]
    keys = torch.cat((K_prefix, K_current), dim=1).to(wide).permute(0, 2, 3, 1)
    values = torch.cat((V_prefix, V_current), dim=1).to(wide).transpose(1, 2)
    position = torch.arange(prefix + current, device=Q.device)
    output = torch.zeros_like(Q)
    rows = max(1, SCORES // max(1, Q.shape[0] * Q.shape[2] * (prefix + current)))
    for start in range(0, current, rows):
        block = slice(start, min(start + rows, current))
        at = position[prefix + block.start : prefix + block.stop]
        own = (image_ids[at][:, None] == image_ids) & (image_ids >= 0)
        visible = ((position <= at[:, None]) | own) & key_valid[:, None, :]
        scores = Q[:, block].to(wide).transpose(1, 2) @ keys * sm_scale
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        output[:, block] = (weights(scores) @ values).transpose(1, 2).to(Q.dtype)
    return output


def weights(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension; zeros where every score is -inf."""
    top = scores.amax(dim=-1, keepdim=True)
    raised = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    total = raised.sum(dim=-1, keepdim=True)
    return raised / total.masked_fill(total == 0, 1.0)
