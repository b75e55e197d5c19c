"""Multi-head latent attention with the up-projections absorbed (DeepSeek-V2, section 2.1.2)."""

import torch

BLOCK = 512


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv: torch.Tensor,
    kpe: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    is_causal: bool,
    sm_scale: float,
) -> torch.Tensor:
    """q_nope [Tq, H, C], q_pe [Tq, H, R], ckv [Tk, C], kpe [Tk, R]; O [Tq, H, C] as q_nope.

    All heads share one compressed key-value ckv and one rotated key kpe a token:

        O = softmax(sm_scale (q_nope ckv^T + q_pe kpe^T)) ckv

    Sequence n has queries qo_indptr[n] to qo_indptr[n + 1] and keys kv_indptr[n] to
    kv_indptr[n + 1]. Its last query is its last key's token: with `is_causal` a query sees no later
    key.
    """
    wide = torch.promote_types(q_nope.dtype, torch.float32)
    out = torch.zeros_like(q_nope)
    queries, keys = qo_indptr.tolist(), kv_indptr.tolist()
    for n in range(len(queries) - 1):
        latent = ckv[keys[n] : keys[n + 1]].to(wide)
        rotated = kpe[keys[n] : keys[n + 1]].to(wide)
        late = (keys[n + 1] - keys[n]) - (queries[n + 1] - queries[n])
        for start in range(queries[n], queries[n + 1], BLOCK):
            end = min(start + BLOCK, queries[n + 1])
            scores = torch.einsum("qhc,kc->hqk", q_nope[start:end].to(wide), latent)
            scores = scores + torch.einsum("qhr,kr->hqk", q_pe[start:end].to(wide), rotated)
            scores = scores * sm_scale
            if is_causal:
                rows = torch.arange(start, end, device=ckv.device) - queries[n] + late
                columns = torch.arange(latent.shape[0], device=ckv.device)
                scores = scores.masked_fill(columns[None] > rows[:, None], float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            out[start:end] = torch.einsum("hqk,kc->qhc", weights, latent).to(q_nope.dtype)
    return out
