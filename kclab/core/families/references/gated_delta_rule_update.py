"""One step of the gated delta rule per sequence, normalising q and k (Gated Delta Networks)."""

import torch
from torch.nn.functional import softplus


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    A_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    qk_l2norm: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, Hk, K], v [B, Hv, V], state [B, Hv, V, K]; (output as v, new state as state).

    With S a sequence's state and value head h reading key head h // (Hv / Hk):

        S *= exp(-exp(A_log) softplus(a + dt_bias))       decay
        S += sigmoid(b) (v - S k) k^T                     write what the state does not predict
        output = scale S q

    With `qk_l2norm` q and k are first divided by sqrt(sum of squares + 1e-6).
    """
    wide = torch.promote_types(torch.promote_types(q.dtype, state.dtype), torch.float32)
    query, key = (unit(x.to(wide)) if qk_l2norm else x.to(wide) for x in (q, k))
    heads = v.shape[1]
    query = query.repeat_interleave(heads // q.shape[1], dim=1)
    key = key.repeat_interleave(heads // k.shape[1], dim=1)
    decay = torch.exp(-torch.exp(A_log.to(wide)) * softplus(a.to(wide) + dt_bias.to(wide)))
    S = state.to(wide) * decay[:, :, None, None]
    error = v.to(wide) - (S * key[:, :, None, :]).sum(dim=-1)
    S = S + (torch.sigmoid(b.to(wide))[..., None] * error)[..., None] * key[:, :, None, :]
    output = (S * query[:, :, None, :]).sum(dim=-1) * scale
    return output.to(v.dtype), S.to(state.dtype)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1, as flash-linear-attention's l2norm makes them."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)
