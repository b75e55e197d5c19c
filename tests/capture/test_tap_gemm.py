"""Matrix products, however a program makes them, are captured with what they really computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kclab import capture

from .conftest import Captured, MemoryRecorder, Tapped

X = torch.randn(6, 4)
W = torch.randn(5, 4)
BIAS = torch.randn(5)

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)


def only(recorder: MemoryRecorder) -> Captured:
    assert recorder.errors == []
    assert len(recorder.captures) == 1, recorder.counts
    return recorder.captures[0]


def check(captured: Captured, a: Tensor, w: Tensor, bias: Tensor | None, c: Tensor) -> None:
    """The capture holds exactly these tensors, and its output is the definition's."""
    torch.testing.assert_close(captured.inputs["A"], a, rtol=0, atol=0)
    torch.testing.assert_close(captured.inputs["W"], w, rtol=0, atol=0)
    assert ("bias" in captured.inputs) == (bias is not None)
    torch.testing.assert_close(captured.outputs["C"], c, rtol=0, atol=0)
    expected = a.double() @ w.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(captured.outputs["C"].double(), expected, rtol=2e-2, atol=2e-2)


PRODUCTS: dict[str, tuple[Callable[[], Tensor], bool]] = {
    "early-bound linear": (lambda: linear(X, W), False),
    "linear with bias": (lambda: linear(X, W, BIAS), True),
    "linear of three dimensions": (lambda: linear(X.view(2, 3, 4), W, BIAS), True),
    "linear of a transposed input": (
        lambda: linear(X.view(2, 3, 4).transpose(0, 1), W).transpose(0, 1),
        False,
    ),
    "@": (lambda: X @ W.t(), False),
    "@ of three dimensions": (lambda: X.view(2, 3, 4) @ W.t(), False),
    "mm": (lambda: torch.mm(X, W.t()), False),
    "mm with out=": (lambda: torch.mm(X, W.t(), out=torch.empty(6, 5)), False),
    "matmul with out=": (lambda: torch.matmul(X, W.t(), out=torch.empty(6, 5)), False),
    "addmm": (lambda: torch.addmm(BIAS, X, W.t()), True),
    "addmm without its addend": (lambda: torch.addmm(BIAS, X, W.t(), beta=0), False),
    "baddbmm": (
        lambda: torch.baddbmm(BIAS.expand(2, 3, 5), X.view(2, 3, 4), W.t().expand(2, 4, 5)),
        True,
    ),
    "einsum": (lambda: torch.einsum("mk,nk->mn", X, W), False),
}


@each_mode
@pytest.mark.parametrize("product", PRODUCTS)
def test_product_is_captured_as_it_ran(tapped: Tapped, mode: type, product: str) -> None:
    call, biased = PRODUCTS[product]
    recorder = tapped()
    with mode():
        result = call()
    captured = only(recorder)
    assert captured.name == f"dense_gemm_fp32_nt{'_bias' if biased else ''}_n5_k4"
    assert captured.call.variant == "rows_6"
    order = X.view(2, 3, 4).transpose(0, 1).reshape(6, 4) if "transposed" in product else X
    rows = result.transpose(0, 1) if "transposed" in product else result
    check(captured, order, W, BIAS if biased else None, rows.reshape(6, 5))


@each_mode
def test_in_place_product_keeps_the_values_from_before(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        row = BIAS[None].clone()
        row.addmm_(X[:1], W.t())
    check(only(recorder), X[:1], W, BIAS, row)
    torch.testing.assert_close(only(recorder).inputs["bias"], BIAS, rtol=0, atol=0)


@each_mode
def test_vector_is_a_matrix_of_one_row(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        result = W @ X[0]
    check(only(recorder), X[:1], W, None, result[None])


@each_mode
def test_overwriting_tensors_after_the_call_changes_no_capture(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode():
        x = X.clone()
        out = linear(x, W)
        result = out.clone()
        x.zero_(), out.zero_()
    check(only(recorder), X, W, None, result)


@each_mode
def test_autocast_captures_the_lowered_inputs(tapped: Tapped, mode: type) -> None:
    recorder = tapped()
    with mode(), torch.autocast("cpu", torch.bfloat16):
        result = linear(X, W, BIAS)
    captured = only(recorder)
    assert captured.name == "dense_gemm_bf16_nt_bias_n5_k4"
    check(captured, X.bfloat16(), W.bfloat16(), BIAS.bfloat16(), result)


UNCAPTURED: dict[str, tuple[Callable[[], object], tuple[str, str]]] = {
    "a batched product": (
        lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        ("aten.bmm", "batched"),
    ),
    "a matrix addend": (
        lambda: torch.addmm(torch.ones(6, 5), X, W.t()),
        ("aten.addmm", "adds a matrix"),
    ),
    "a scaled product": (
        lambda: torch.addmm(BIAS, X, W.t(), alpha=2),
        ("aten.addmm", "scaled by alpha or beta"),
    ),
    "a fused recurrent layer": (
        lambda: nn.LSTM(4, 4)(X),
        ("aten.mkldnn_rnn_layer", "a recurrent layer in one kernel"),
    ),
    "a double": (lambda: X.double() @ W.double().t(), ("aten.mm", "dtype float64")),
}


@each_mode
@pytest.mark.parametrize("what", UNCAPTURED)
def test_product_without_a_definition_is_counted(tapped: Tapped, mode: type, what: str) -> None:
    call, counted = UNCAPTURED[what]
    recorder = tapped()
    with mode():
        call()
    assert recorder.captures == []
    assert recorder.counts == {counted: 1}


def test_shape_without_definition_is_counted_unless_made(tapped: Tapped) -> None:
    recorder = tapped(define_missing=False)
    linear(X, W)
    assert recorder.counts == {("dense_gemm_fp32_nt_n5_k4", "no definition"): 1}


def test_definition_that_is_not_selected_is_left_alone(tapped: Tapped) -> None:
    recorder = tapped(definitions=("dense_gemm_*_n7_k4",))
    linear(X, W)
    assert recorder.captures == [] and not recorder.counts


def test_backward_products_are_captured_too(tapped: Tapped) -> None:
    recorder = tapped()
    weight = W.clone().requires_grad_()
    linear(X, weight).backward(torch.ones(6, 5))
    forward, backward = recorder.captures
    check(forward, X, W, None, forward.outputs["C"])
    assert weight.grad is not None
    check(backward, torch.ones(6, 5).t(), X.t(), None, weight.grad)


@pytest.mark.parametrize("gradients", [False, True], ids=["fast path", "slow path"])
def test_inner_linears_of_multihead_attention_are_captured(tapped: Tapped, gradients: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.set_grad_enabled(gradients):
        untouched = attention(x, x, x)[0]
        recorder = tapped()
        watched = attention(x, x, x)[0]
    assert torch.equal(untouched, watched)
    assert recorder.names() == ["dense_gemm_fp32_nt_n24_k8", "dense_gemm_fp32_nt_bias_n8_k8"]
    packed, out = recorder.captures
    torch.testing.assert_close(packed.inputs["W"], attention.in_proj_weight.data, rtol=0, atol=0)
    # The slow path puts the sequence first.
    first = (lambda t: t.transpose(0, 1)) if gradients else (lambda t: t)
    torch.testing.assert_close(packed.inputs["A"], first(x).reshape(6, 8), rtol=0, atol=0)
    result = first(watched.detach()).reshape(6, 8)
    torch.testing.assert_close(out.outputs["C"], result, rtol=0, atol=0)


def test_encoder_layers_fast_path_shows_its_products(tapped: Tapped) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        untouched = layer(x)
        recorder = tapped()
        assert torch.equal(layer(x), untouched)
    assert "dense_gemm_fp32_nt_bias_n8_k16" in recorder.names()
    assert ("aten._addmm_activation", "fused activation") in recorder.counts


def test_wrapper_subclass_shows_the_products_that_it_runs(tapped: Tapped) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    recorder = tapped(per="site")
    linear(TwoTensor(X, 2 * X), W)
    assert recorder.errors == []
    torch.testing.assert_close(recorder.captures[0].inputs["A"], X, rtol=0, atol=0)


# torch calls this layout a prototype.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_keep_their_own_kernels(tapped: Tapped) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with torch.inference_mode():
        untouched = linear(nested, W).to_padded_tensor(0.0)
        recorder = tapped()
        watched = linear(nested, W).to_padded_tensor(0.0)
    assert torch.equal(watched, untouched)
    assert recorder.errors == []


def test_error_of_the_operator_reaches_the_program(tapped: Tapped) -> None:
    recorder = tapped()
    with pytest.raises(RuntimeError, match="out"):
        torch.mm(X, W.t(), out=torch.empty(6, 5, dtype=torch.int32))
    assert recorder.counts["", "abandoned"] == 1


def test_capture_error_does_not_reach_the_program(
    tapped: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryRecorder, "begin", lambda *_: 1 / 0)
    recorder = tapped()
    assert linear(X, W).shape == (6, 5)
    assert [type(error) for error in recorder.errors] == [ZeroDivisionError]


def test_capture_error_is_raised_when_strict(
    tapped: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryRecorder, "begin", lambda *_: 1 / 0)
    tapped(strict=True)
    with pytest.raises(ZeroDivisionError):
        linear(X, W)


def test_variant_keeps_one_capture_per_shape_and_site_keeps_all(tapped: Tapped) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    by_shape = tapped()
    with capture.request("one"):
        model(X)
    assert len(by_shape.captures) == 1


def test_site_keeps_one_capture_per_module(tapped: Tapped) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    recorder = tapped(per="site")
    model(X)
    assert [c.call.module_path for c in recorder.captures] == ["0", "1"]
