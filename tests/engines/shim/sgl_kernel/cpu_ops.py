"""The operators of sgl_kernel that SGLang's CPU path of Qwen3-Next calls, in plain torch.

SGLang's own need AMX. Layouts are SGLang's: tokens of all sequences in a row, cut by
`query_start_loc` or `cu_seqlens`; states in a pool, found by `*_indices`, changed in place.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = "silu",
    conv_states: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    cache_indices: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    seq_lens_cpu: Any = None,
    **_: Any,
) -> Tensor:
    """Depthwise causal convolution of x [D, T] with weight [D, K], over each sequence."""
    assert conv_states is not None and cache_indices is not None and query_start_loc is not None
    out = torch.zeros_like(x)
    bounds = query_start_loc.tolist()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        slot = int(cache_indices[number])
        history = conv_states[slot].to(x.dtype)
        if has_initial_state is None or not bool(has_initial_state[number]):
            history = torch.zeros_like(history)
        window = torch.cat([history, x[:, begin:end]], dim=1)
        out[:, begin:end] = _convolve(window, weight, bias, activation)
        conv_states[slot] = window[:, 1 - weight.shape[1] :].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = "silu",
    conv_state_indices: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """The same for one new token of each sequence: x [B, D]."""
    assert conv_state_indices is not None
    out = torch.empty_like(x)
    for number, slot in enumerate(conv_state_indices.tolist()):
        window = torch.cat([conv_state[slot].to(x.dtype), x[number, :, None]], dim=1)
        out[number] = _convolve(window, weight, bias, activation)[:, -1]
        conv_state[slot] = window[:, 1 - weight.shape[1] :].to(conv_state.dtype)
    return out


def _convolve(window: Tensor, weight: Tensor, bias: Tensor | None, activation: Any) -> Tensor:
    channels = window.shape[0]
    offset = None if bias is None else bias.float()
    out = F.conv1d(window.float()[None], weight.float()[:, None], offset, groups=channels)[0]
    return (F.silu(out) if activation in ("silu", "swish", True) else out).to(window.dtype)


def fused_gdn_gating_cpu(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """(g, beta), each [1, T, HV] float32: log decay -exp(A) softplus(a + dt), and sigmoid(b)."""
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state_indices: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, None, None]:
    """The gated delta rule over q, k [1, T, H, K], v [1, T, HV, V]; states [slots, HV, V, K]."""
    assert cu_seqlens is not None and initial_state_indices is not None
    out = torch.zeros_like(v)
    bounds = cu_seqlens.tolist()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        slot = int(initial_state_indices[number])
        part = [value[0, begin:end].float() for value in (q, k, v, g, beta)]
        if use_qk_l2norm_in_kernel:
            part[:2] = [x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in part[:2]]
        part[0] = part[0] * (scale or q.shape[-1] ** -0.5)
        values, state = _recur(*part, initial_state[slot].float())
        out[0, begin:end] = values.to(v.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, None


def _recur(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token: decay the state, write what it does not predict of v, read it with q."""
    repeat = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(repeat, dim=1), k.repeat_interleave(repeat, dim=1)
    read = []
    for token in range(q.shape[0]):
        state = state * g[token].exp()[:, None, None]
        predicted = (state @ k[token][:, :, None])[:, :, 0]
        change = beta[token][:, None] * (v[token] - predicted)
        state = state + change[:, :, None] * k[token][:, None, :]
        read.append((state @ q[token][:, :, None])[:, :, 0])
    return torch.stack(read), state


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """Gating and delta rule in one, for decoding."""
    heads = A_log.numel()
    g, beta = fused_gdn_gating_cpu(A_log, a.reshape(-1, heads), b.reshape(-1, heads), dt_bias)
    out, _none, _nothing = chunk_gated_delta_rule_cpu(
        q,
        k,
        v,
        g,
        beta,
        initial_state_source,
        cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        initial_state_indices=initial_state_indices,
        scale=scale,
    )
    return out


def topk_softmax_cpu(
    hidden_states: Tensor,
    gating_output: Tensor,
    topk: int,
    renormalize: bool,
    correction_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(weights, expert ids) of the best `topk` experts of each token."""
    weights, ids = gating_output.float().softmax(-1).topk(topk, dim=-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.to(torch.int32)


def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """RMS norm, then a SiLU gate."""
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale * weight.float() * F.silu(gate.float())).to(x.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    out_cache_loc: Tensor,
    width: int,
) -> None:
    """Write each request's new cache slots into its row."""
    taken = 0
    for row, begin, stop in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        count = stop - begin
        slots = out_cache_loc[taken : taken + count]
        req_to_token[row, begin:stop] = slots.to(req_to_token.dtype)
        taken += count


def register() -> None:
    """Put those that SGLang calls as `torch.ops.sgl_kernel.…` there."""
    for operator in (
        fused_gdn_gating_cpu,
        fused_sigmoid_gating_delta_rule_update_cpu,
        topk_softmax_cpu,
        fused_rmsnorm_gated_cpu,
    ):
        setattr(torch.ops.sgl_kernel, operator.__name__, operator)
