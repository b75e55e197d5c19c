"""One step of the gated delta rule per sequence (Yang et al., Gated Delta Networks)."""

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
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, 1, Hk, K], v [B, 1, Hv, V], state [B, Hv, V, K]; (output as v, new state as state).

    With S a sequence's state and value head h reading key head h // (Hv / Hk):

        S *= exp(-exp(A_log) softplus(a + dt_bias))       decay
        S += sigmoid(b) (v - S k) k^T                     write what the state does not predict
        output = scale S q

    No state means zeros, scale 0 means 1 / sqrt(K). q and k come as they are, normalised or not.
    """
    batch, _, heads, value_size = v.shape
    if state is None:
        state = A_log.new_zeros(batch, heads, value_size, k.shape[3])
    wide = torch.promote_types(torch.promote_types(q.dtype, state.dtype), torch.float32)
    query = q[:, 0].to(wide).repeat_interleave(heads // q.shape[2], dim=1)
    key = k[:, 0].to(wide).repeat_interleave(heads // k.shape[2], dim=1)
    decay = torch.exp(-torch.exp(A_log.to(wide)) * softplus(a[:, 0].to(wide) + dt_bias.to(wide)))
    S = state.to(wide) * decay[:, :, None, None]
    error = v[:, 0].to(wide) - (S * key[:, :, None, :]).sum(dim=-1)
    written = torch.sigmoid(b[:, 0].to(wide))[..., None] * error
    S = S + written[..., None] * key[:, :, None, :]
    output = (S * query[:, :, None, :]).sum(dim=-1) * (scale or q.shape[3] ** -0.5)
    return output[:, None].to(v.dtype), S.to(state.dtype)
