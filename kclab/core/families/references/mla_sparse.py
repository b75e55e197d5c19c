"""Multi-head latent attention over keys that each query chose (DeepSeek-V3.2-Exp, section 2)."""

import torch

BLOCK = 16


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv: torch.Tensor,
    kpe: torch.Tensor,
    sparse_indices: torch.Tensor,
    sm_scale: float,
) -> torch.Tensor:
    """q_nope [Tq, H, C], q_pe [Tq, H, R], ckv [Tk, C], kpe [Tk, R]; O [Tq, H, C] as q_nope.

    Query t attends, with all its heads, to the keys of rows sparse_indices[t] [K] alone, where -1
    is none:

        O[t] = softmax(sm_scale (q_nope[t] ckv[rows]^T + q_pe[t] kpe[rows]^T)) ckv[rows]

    It is 0 for a query without any key. Raises IndexError for a row that is not there.
    """
    wide = torch.promote_types(q_nope.dtype, torch.float32)
    out = torch.zeros_like(q_nope)
    chosen = sparse_indices.long()
    if chosen.numel() and (chosen.max() >= ckv.shape[0] or chosen.min() < -1):
        raise IndexError(f"sparse_indices name rows outside of the {ckv.shape[0]} keys")
    for start in range(0, q_nope.shape[0], BLOCK):
        rows = chosen[start : start + BLOCK]
        none = rows < 0
        latent = ckv[rows.clamp(min=0)].to(wide)
        rotated = kpe[rows.clamp(min=0)].to(wide)
        part = slice(start, start + rows.shape[0])
        scores = torch.einsum("qhc,qkc->qhk", q_nope[part].to(wide), latent)
        scores = scores + torch.einsum("qhr,qkr->qhk", q_pe[part].to(wide), rotated)
        scores = (scores * sm_scale).masked_fill(none[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1).masked_fill(none.all(1)[:, None, None], 0.0)
        out[part] = torch.einsum("qhk,qkc->qhc", weights, latent).to(q_nope.dtype)
    return out
