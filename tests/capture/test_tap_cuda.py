"""What differs on a GPU: other kernels, autograd's own threads, graph capture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .conftest import Tapped, only, replayed

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    # torch's compiler and cuBLAS set-up warn of their own parts.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@each_mode
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_captured_unchanged(tapped: Tapped, mode: type, biased: bool) -> None:
    x, w = tensor(2, 64, 256), tensor(128, 256)
    bias = tensor(128) if biased else None
    with mode():
        untouched = functional.linear(x, w, bias)
        recorder = tapped()
        assert torch.equal(functional.linear(x, w, bias), untouched)
    captured = only(recorder, "dense_gemm_bf16")
    assert torch.equal(captured.outputs["C"], untouched.view(128, 128))
    assert torch.equal(captured.inputs["A"], x.view(128, 256))
    torch.testing.assert_close(replayed(captured), captured.outputs["C"], rtol=0.016, atol=0.05)


@each_mode
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: str(backend.name))
def test_attention_is_captured_whole(tapped: Tapped, mode: type, backend: SDPBackend) -> None:
    q, k, v = tensor(3, 2, 4, 128, 64)
    with mode(), sdpa_kernel(backend):
        untouched = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        recorder = tapped()
        watched = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(watched, untouched)
    captured = only(recorder, "sdpa_bf16_h4_kv4_d64")
    assert torch.equal(captured.outputs["O"], watched)
    torch.testing.assert_close(replayed(captured), watched, rtol=0.016, atol=0.01)


@each_mode
def test_autocast_captures_the_lowered_inputs(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    x, w, q = (tensor(*s, dtype=torch.float32) for s in ((8, 64), (32, 64), (1, 2, 16, 64)))
    with mode(), torch.autocast("cuda", torch.bfloat16):
        functional.linear(x, w)
        functional.scaled_dot_product_attention(q, q, q)
    assert only(recorder, "dense_gemm").name == "dense_gemm_bf16_nt_n32_k64"
    attention = only(recorder, "sdpa")
    assert attention.name == "sdpa_bf16_h2_kv2_d64"
    torch.testing.assert_close(replayed(attention), attention.outputs["O"], rtol=0.016, atol=0.01)


def test_products_of_autograds_threads_are_captured(tapped: Tapped) -> None:
    recorder = tapped()
    x, w = tensor(64, 256), tensor(128, 256).requires_grad_()
    functional.linear(x, w).backward(torch.ones(64, 128, device="cuda", dtype=torch.bfloat16))
    backward = only(recorder, "dense_gemm_bf16_nt_n256_k64")
    assert torch.equal(backward.outputs["C"], w.grad)  # type: ignore[arg-type]  # it is there


def test_multihead_attentions_fast_path_is_kept(tapped: Tapped) -> None:
    attention = nn.MultiheadAttention(64, 2, batch_first=True).cuda().eval()
    x = tensor(2, 16, 64, dtype=torch.float32)
    with torch.no_grad():
        untouched = attention(x, x, x, need_weights=False)[0]
        recorder = tapped()
        assert torch.equal(attention(x, x, x, need_weights=False)[0], untouched)
    assert recorder.errors == []
    assert "dense_gemm_fp32_nt_bias_n64_k64" in recorder.names()


def test_graph_capture_is_counted_and_not_disturbed(tapped: Tapped) -> None:
    x, w = tensor(64, 256), tensor(128, 256)
    side = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(side):
        functional.linear(x, w)
    torch.cuda.synchronize()
    recorder = tapped()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        result = functional.linear(x, w)
    x.fill_(1)
    graph.replay()
    assert recorder.captures == []
    assert recorder.counts["dense_gemm_bf16_nt_n128_k256", "graph capture"] == 1
    torch.testing.assert_close(result[0].float(), w.float().sum(1), rtol=0.02, atol=0.1)


def test_compiled_products_are_captured_and_the_rest_is_said(tapped: Tapped) -> None:
    net = nn.Sequential(nn.Linear(256, 128), nn.GELU()).cuda().bfloat16()
    model = torch.compile(net)
    x = tensor(64, 256)
    with torch.inference_mode():
        untouched = model(x)
        recorder = tapped(root="Sequential")
        assert torch.equal(model(x), untouched)
    assert only(recorder, "dense_gemm_bf16").call.step == 0
    assert recorder.counts["torch.compile", "operators that it fuses are not seen"] == 1
