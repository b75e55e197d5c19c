"""The gated delta rule over whole sequences, token by token (Yang et al., Gated Delta Networks)."""

import torch
from torch.nn.functional import softplus


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor | None,
    A_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    b: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [T, Hk, K], v [T, Hv, V], state [N, Hv, V, K]; (output as v, new state as state).

    For each token of a sequence, with S its state and value head h reading key head h // (Hv / Hk):

        S *= exp(-exp(A_log) softplus(a + dt_bias))       decay
        S += sigmoid(b) (v - S k) k^T                     write what the state does not predict
        output = scale S q

    Sequence n is rows cu_seqlens[n] to cu_seqlens[n + 1]; an empty one keeps its state. No state
    means zeros, scale 0 means 1 / sqrt(K). q and k come as they are, normalised or not.
    """
    count, heads = cu_seqlens.numel() - 1, v.shape[1]
    if state is None:
        state = A_log.new_zeros(count, heads, v.shape[2], k.shape[2])
    wide = torch.promote_types(torch.promote_types(q.dtype, state.dtype), torch.float32)
    share = heads // q.shape[1]
    queries = q.to(wide).repeat_interleave(share, dim=1) * (scale or q.shape[2] ** -0.5)
    keys = k.to(wide).repeat_interleave(heads // k.shape[1], dim=1)
    values = v.to(wide)
    decay = torch.exp(-torch.exp(A_log.to(wide)) * softplus(a.to(wide) + dt_bias.to(wide)))
    beta = torch.sigmoid(b.to(wide))
    output, new_state = torch.zeros_like(v), state.clone()
    bounds = cu_seqlens.tolist()
    for n in range(count):
        S = state[n].to(wide)
        for t in range(bounds[n], bounds[n + 1]):
            S = S * decay[t, :, None, None]
            error = values[t] - (S * keys[t, :, None, :]).sum(dim=-1)
            S = S + (beta[t, :, None] * error)[:, :, None] * keys[t, :, None, :]
            output[t] = (S * queries[t, :, None, :]).sum(dim=-1).to(v.dtype)
        new_state[n] = S.to(state.dtype)
    return output, new_state
