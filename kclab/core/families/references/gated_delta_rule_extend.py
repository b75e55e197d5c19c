"""The gated delta rule over whole sequences, gates given (Yang et al., Gated Delta Networks)."""

import torch


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    qk_l2norm: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [T, Hk, K], v [T, Hv, V], state [N, Hv, V, K]; (output as v, new state as state).

    For each token of a sequence, with S its state and value head h reading key head h // (Hv / Hk):

        S *= exp(g)                                       decay
        S += beta (v - S k) k^T                           write what the state does not predict
        output = scale S q

    Sequence n is rows cu_seqlens[n] to cu_seqlens[n + 1]; an empty one keeps its state. With
    `qk_l2norm` q and k are first divided by sqrt(sum of squares + 1e-6).
    """
    wide = torch.promote_types(torch.promote_types(q.dtype, state.dtype), torch.float32)
    queries, keys = (unit(x.to(wide)) if qk_l2norm else x.to(wide) for x in (q, k))
    heads = v.shape[1]
    queries = queries.repeat_interleave(heads // q.shape[1], dim=1) * scale
    keys = keys.repeat_interleave(heads // k.shape[1], dim=1)
    values, decay, write = v.to(wide), torch.exp(g.to(wide)), beta.to(wide)
    output, new_state = torch.zeros_like(v), state.clone()
    bounds = cu_seqlens.tolist()
    for n in range(len(bounds) - 1):
        S = state[n].to(wide)
        for t in range(bounds[n], bounds[n + 1]):
            S = S * decay[t, :, None, None]
            error = values[t] - (S * keys[t, :, None, :]).sum(dim=-1)
            S = S + (write[t, :, None] * error)[:, :, None] * keys[t, :, None, :]
            output[t] = (S * queries[t, :, None, :]).sum(dim=-1).to(v.dtype)
        new_state[n] = S.to(state.dtype)
    return output, new_state


def unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1, as flash-linear-attention's l2norm makes them."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)
