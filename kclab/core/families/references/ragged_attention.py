"""softmax(scale Q K^T) V for several sequences side by side, each with its own keys."""

import torch

BLOCK = 1024


def run(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    is_causal: bool,
    sm_scale: float,
) -> torch.Tensor:
    """Q [Tq, H, D], K [Tk, Hkv, D], V [Tk, Hkv, Dv]; O [Tq, H, Dv] in Q's dtype.

    Sequence n has queries qo_indptr[n] to qo_indptr[n + 1] and keys kv_indptr[n] to
    kv_indptr[n + 1]. Its last query is its last key's token: with `is_causal` a query sees no later
    key. Query head h reads key head h // (H / Hkv).
    """
    wide = torch.promote_types(Q.dtype, torch.float32)
    share = Q.shape[1] // K.shape[1]
    out = torch.zeros(*Q.shape[:2], V.shape[2], dtype=Q.dtype, device=Q.device)
    queries, keys = qo_indptr.tolist(), kv_indptr.tolist()
    for n in range(len(queries) - 1):
        key = K[keys[n] : keys[n + 1]].to(wide).repeat_interleave(share, dim=1)
        value = V[keys[n] : keys[n + 1]].to(wide).repeat_interleave(share, dim=1)
        late = (keys[n + 1] - keys[n]) - (queries[n + 1] - queries[n])
        for start in range(queries[n], queries[n + 1], BLOCK):
            end = min(start + BLOCK, queries[n + 1])
            scores = torch.einsum("qhd,khd->hqk", Q[start:end].to(wide), key) * sm_scale
            if is_causal:
                rows = torch.arange(start, end, device=Q.device) - queries[n] + late
                columns = torch.arange(key.shape[0], device=Q.device)
                scores = scores.masked_fill(columns[None] > rows[:, None], float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            out[start:end] = torch.einsum("hqk,khd->qhd", weights, value).to(Q.dtype)
    return out
