"""Scaled-dot-product attention is captured whole, whichever way torch takes and whoever calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as early

from .conftest import Tapped, only, replayed

Q = torch.randn(2, 4, 3, 8)
KV = torch.randn(2, 2, 2, 5, 8)
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)


def attend(**extra: Any) -> Tensor:
    k, v = KV.repeat_interleave(2, dim=2)
    return functional.scaled_dot_product_attention(Q, k, v, **extra)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.5},
    "bool mask": {"attn_mask": torch.ones(3, 5, dtype=torch.bool).tril()},
    "float mask": {"attn_mask": torch.randn(2, 1, 3, 5)},
}


@each_mode
@pytest.mark.parametrize("math", [False, True], ids=["fused", "math"])
@pytest.mark.parametrize("kind", CALLS)
def test_attention_is_captured_whole(tapped: Tapped, mode: type, math: bool, kind: str) -> None:
    recorder = tapped()
    backends = [SDPBackend.MATH] if math else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with mode(), sdpa_kernel(backends):
        result = attend(**CALLS[kind])
    captured = only(recorder, "sdpa")
    mask = {"bool mask": "_mask_bool", "float mask": "_mask_float"}.get(kind, "")
    assert captured.name == f"sdpa_fp32_h4_kv4_d8{mask}"
    assert recorder.names() == [captured.name] and not recorder.counts
    torch.testing.assert_close(captured.outputs["O"], result, rtol=0, atol=0)
    torch.testing.assert_close(replayed(captured), result)


@each_mode
def test_grouped_queries_keep_their_fewer_key_heads(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        result = functional.scaled_dot_product_attention(Q, KV[0], KV[1], enable_gqa=True)
    captured = only(recorder, "sdpa")
    assert captured.name == "sdpa_fp32_h4_kv2_d8"
    torch.testing.assert_close(replayed(captured), result)


@each_mode
def test_three_dimensions_are_a_batch_of_one(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        result = functional.scaled_dot_product_attention(Q[0], Q[1], Q[1])
    captured = only(recorder, "sdpa")
    assert captured.outputs["O"].shape == (1, 4, 3, 8)
    torch.testing.assert_close(captured.outputs["O"][0], result, rtol=0, atol=0)
    torch.testing.assert_close(replayed(captured)[0], result)


@each_mode
def test_autocast_captures_the_lowered_inputs(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode(), torch.autocast("cpu", torch.bfloat16):
        result = attend()
    captured = only(recorder, "sdpa")
    assert captured.name == "sdpa_bf16_h4_kv4_d8"
    torch.testing.assert_close(captured.outputs["O"], result, rtol=0, atol=0)
    torch.testing.assert_close(replayed(captured), result, rtol=2e-2, atol=2e-2)


@each_mode
@pytest.mark.parametrize("math", [False, True], ids=["fused", "math"])
def test_early_bound_function_is_seen_too(tapped: Tapped, mode: type, math: bool) -> None:
    recorder = tapped()
    with mode(), sdpa_kernel([SDPBackend.MATH] if math else [SDPBackend.FLASH_ATTENTION]):
        result = early(Q, Q, Q)
    torch.testing.assert_close(only(recorder, "sdpa").outputs["O"], result, rtol=0, atol=0)


@each_mode
def test_dropout_is_counted(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        attend(dropout_p=0.5)
    assert ("scaled_dot_product_attention", "dropout") in recorder.counts
    assert not any(name.startswith("sdpa") for name in recorder.names())


def test_gradients_flow_as_without_capture(tapped: Tapped) -> None:
    def gradient() -> Tensor:
        q = Q.clone().requires_grad_()
        functional.scaled_dot_product_attention(q, Q, Q).sum().backward()
        assert q.grad is not None
        return q.grad

    untouched = gradient()
    recorder = tapped()
    assert torch.equal(gradient(), untouched)
    only(recorder, "sdpa")


def test_attention_of_a_training_multihead_attention_is_captured(tapped: Tapped) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    recorder = tapped()
    attention(x, x, x, need_weights=False)
    assert only(recorder, "sdpa").name == "sdpa_fp32_h2_kv2_d4"


def test_watching_leaves_multihead_attentions_fast_path_on(tapped: Tapped) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    recorder = tapped()
    with torch.no_grad():
        attention(x, x, x, need_weights=False)
    # The slow path would run one fused attention; the fast path's batched products are not it.
    assert ("aten.bmm", "batched") in recorder.counts
    assert not any(name.startswith("sdpa") for name in recorder.names())


def test_watched_function_can_still_be_scripted(tapped: Tapped) -> None:
    recorder = tapped()

    def attention(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    scripted = torch.jit.script(attention)
    with torch.inference_mode():
        torch.testing.assert_close(scripted(Q), attention(Q))
    assert recorder.errors == []
