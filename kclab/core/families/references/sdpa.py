"""Scaled-dot-product attention: softmax(scale Q K^T) V, softmax over the keys."""

import torch

SCORES = 1 << 25
"""Scores held at a time; query rows are taken in blocks that stay below it."""


def run(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, is_causal: bool, scale: float
) -> torch.Tensor:
    """Q [B, H, Sq, D], K [B, Hkv, Sk, D], V [B, Hkv, Sk, Dv]; output [B, H, Sq, Dv] in Q's dtype.

    Causal means key <= query, both counted from 0. Query head h reads key head h // (H / Hkv).
    """
    wide = torch.promote_types(Q.dtype, torch.float32)
    share = Q.shape[1] // max(1, K.shape[1])
    keys = K.to(wide).repeat_interleave(share, dim=1).transpose(-1, -2)
    values = V.to(wide).repeat_interleave(share, dim=1)
    output = Q.new_zeros(*Q.shape[:-1], V.shape[-1])
    rows = max(1, SCORES // max(1, Q.shape[0] * Q.shape[1] * K.shape[2]))
    for start in range(0, Q.shape[2] if K.shape[2] else 0, rows):
        block = slice(start, min(start + rows, Q.shape[2]))
        scores = Q[:, :, block].to(wide) @ keys * scale
        if is_causal:
            query = torch.arange(block.start, block.stop, device=Q.device)[:, None]
            later = torch.arange(K.shape[2], device=Q.device) > query
            scores = scores.masked_fill(later, float("-inf"))
        output[:, :, block] = (weights(scores) @ values).to(Q.dtype)
    return output


def weights(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension; zeros where every score is -inf."""
    top = scores.amax(dim=-1, keepdim=True)
    raised = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    total = raised.sum(dim=-1, keepdim=True)
    return raised / total.masked_fill(total == 0, 1.0)
