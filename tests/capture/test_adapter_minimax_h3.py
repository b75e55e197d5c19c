"""The minimax-h3 adapter on stand-ins: FC2 in both precisions, and packed attention."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kclab import capture
from kclab.capture.adapters import minimax_h3 as adapter
from kclab.core.errors import EnvironmentLacking
from kclab.core.families.family import read_reference
from kclab.fc2.operands import synthetic
from kclab.fc2.problem import Precision, Problem

from .conftest import MemoryRecorder, Tapped, current_tap
from .test_adapter_qwen_next import armed as armed_one
from .test_adapter_qwen_next import assert_replays, noise

ROWS, N, K = 21, 32, 96


def engine() -> Any:
    """The modules that the adapter wraps, as one."""
    module = ModuleType("sglang_h3")

    class UnquantizedLinearMethod:
        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            return linear(x, layer.weight, bias)

    class ComfyNvfp4LinearMethod:
        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            given = layer.operands
            output = module.scaled_mm_nvfp4(
                given.activation,
                given.weight,
                tensor_scale_a=given.activation_tensor_scale.reshape(()),
                tensor_scale_b=given.weight_tensor_scale.reshape(()),
                block_scale_a=given.activation_scale,
                block_scale_b=given.weight_scale,
                bias=bias,
                out_dtype=x.dtype,
            )
            return output[: x.shape[0]]

    class OtherMethod(UnquantizedLinearMethod):
        pass

    class Linear(nn.Module):
        def __init__(self, n: int, k: int, method: Any):
            super().__init__()
            self.quant_method, self.weight = method, nn.Parameter(noise(n, k))

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return self.quant_method.apply(self, x), None

    class MiniMaxH3MLP(nn.Module):
        def __init__(self, method: Any):
            super().__init__()
            plain = UnquantizedLinearMethod()
            self.fc1, self.fc2 = Linear(K, N, plain), Linear(N, K, method)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(self.fc1(x)[0])[0]

    def scaled_mm_nvfp4(
        a, b, tensor_scale_a, tensor_scale_b, block_scale_a, block_scale_b,
        bias=None, out_dtype=None,
    ):  # fmt: skip
        namespace: dict[str, Any] = {}
        exec(read_reference("fc2_nvfp4"), namespace)
        scales = tensor_scale_a, tensor_scale_b
        alpha = (tensor_scale_a * tensor_scale_b).reshape(1)
        return namespace["run"](a, b, block_scale_a, block_scale_b, ROWS, alpha, *scales)

    def packed(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
        namespace: dict[str, Any] = {}
        exec(read_reference("ragged_attention"), namespace)
        return namespace["run"](q, k, v, bounds, bounds, False, q.shape[2] ** -0.5)

    def _minimax_h3_attention_core_impl(
        attention, q, k, v, *, cu_seqlens, cu_seqlens_host=None, ulysses_active=False,
        ring_active=False, gate_compress=None,
    ):  # fmt: skip
        if not ulysses_active:
            return packed(q, k, v, cu_seqlens)
        # As of two devices: this one has half of the heads, after the exchange all tokens of them.
        mine = [torch.cat([x, x])[:, :1] for x in (q, k, v)]
        return attention._attention_impl.forward_varlen(*mine, cu_seqlens=2 * cu_seqlens)

    class SDPAImpl:
        softmax_scale = None

        def forward_varlen(
            self, query, key, value, *, cu_seqlens, cu_seqlens_host=None
        ):  # fmt: skip
            return packed(query, key, value, cu_seqlens)

    class FlashAttentionImpl(SDPAImpl):
        def forward_varlen(self, query, key, value, **more):
            return super().forward_varlen(query, key, value, **more)

    class SageImpl(SDPAImpl):
        def forward_varlen(self, query, key, value, **more):
            return packed(query, key, value, more["cu_seqlens"])

    class MiniMaxH3Attention(nn.Module):
        def __init__(self, implementation: str):
            super().__init__()
            self._attention_impl = getattr(module, implementation)()

        def forward(self, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
            return module._minimax_h3_attention_core_impl(self, q, k, v, **more)

    for part in (
        UnquantizedLinearMethod, ComfyNvfp4LinearMethod, OtherMethod, MiniMaxH3MLP,
        scaled_mm_nvfp4, _minimax_h3_attention_core_impl, MiniMaxH3Attention,
        SDPAImpl, FlashAttentionImpl, SageImpl,
    ):  # fmt: skip
        setattr(module, part.__name__, part)
    return module


def armed(tapped: Tapped, module: Any) -> MemoryRecorder:
    recorder = armed_one(tapped, adapter.instrument, module)
    adapter.instrument_linear(module, current_tap())
    adapter.instrument_nvfp4(module, current_tap())
    for name in adapter.IMPLEMENTATIONS:
        adapter.instrument_packed(current_tap(), name, module)
    return recorder


def test_plain_fc2_is_captured_and_no_other_linear(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    adapter.instrument(module, current_tap())
    adapter.instrument_linear(module, current_tap())
    with capture.request("r"), torch.no_grad():
        module.MiniMaxH3MLP(module.UnquantizedLinearMethod())(noise(ROWS, N))
    (captured,) = recorder.captures
    assert (captured.name, captured.call.variant) == (f"fc2_bf16_n{N}_k{K}", f"rows_{ROWS}")
    assert_replays(captured)


def test_nvfp4_fc2_is_captured_as_the_library_takes_it(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    operands = synthetic(Problem(Precision.NVFP4, ROWS, N, K), 1, "cpu")
    mlp = module.MiniMaxH3MLP(module.ComfyNvfp4LinearMethod())
    mlp.fc2.operands = operands
    with capture.request("r"), torch.no_grad():
        mlp(noise(ROWS, N))
    (captured,) = recorder.captures
    assert captured.name == f"fc2_nvfp4_n{N}_k{K}"
    assert captured.inputs["rows"] == ROWS
    for name, tensor in operands.tensors().items():
        assert torch.equal(captured.inputs[name], tensor), name
    assert captured.outputs["C"].shape == (32, N)
    assert_replays(captured)


def test_nvfp4_gemm_elsewhere_is_no_fc2(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    operands = synthetic(Problem(Precision.NVFP4, ROWS, N, K), 1, "cpu")
    layer = SimpleNamespace(operands=operands)
    with capture.request("r"):
        module.ComfyNvfp4LinearMethod().apply(layer, noise(ROWS, K))
    assert recorder.captures == []


def test_other_quantisation_is_counted_by_its_name(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    with capture.request("r"), torch.no_grad():
        module.MiniMaxH3MLP(module.OtherMethod())(noise(ROWS, N))
    assert recorder.counts["fc2", "linear of another kind: OtherMethod"] == 1


def attend(module: Any, rows: int = 6, implementation: str = "SDPAImpl", **more: Any) -> None:
    bounds = torch.tensor([0, 4, 6], dtype=torch.int32)
    layer = module.MiniMaxH3Attention(implementation)
    given = (noise(rows, 2, 8), noise(rows, 2, 8), noise(rows, 2, 8))
    with capture.request("r"):
        layer(*given, cu_seqlens=bounds, **more)


def test_packed_attention_is_captured_with_its_documents(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    attend(module)
    (captured,) = recorder.captures
    assert captured.name == "ragged_attention_bf16_h2_kv2_d8"
    assert captured.inputs["qo_indptr"].tolist() == [0, 4, 6]
    assert_replays(captured)


@pytest.mark.parametrize("implementation", ["SDPAImpl", "FlashAttentionImpl"])
def test_devices_that_share_the_tokens_capture_all_tokens_of_their_heads(
    tapped: Tapped, implementation: str
) -> None:
    module = engine()
    recorder = armed(tapped, module)
    attend(module, implementation=implementation, ulysses_active=True)
    (captured,) = recorder.captures
    assert captured.name == "ragged_attention_bf16_h1_kv1_d8"
    assert captured.inputs["Q"].shape == (12, 1, 8)
    assert captured.inputs["qo_indptr"].tolist() == [0, 8, 12]
    assert not recorder.counts
    assert_replays(captured)


def test_packed_attention_of_something_else_is_left_alone(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    bounds = torch.tensor([0, 6], dtype=torch.int32)
    with capture.request("r"):
        module.SDPAImpl().forward_varlen(*[noise(6, 2, 8)] * 3, cu_seqlens=bounds)
    assert recorder.captures == []


@pytest.mark.parametrize(
    ("rows", "more", "reason"),
    [
        (6, {"ring_active": True}, "tokens split over several devices"),
        (6, {"ulysses_active": True, "ring_active": True}, "tokens split over several devices"),
        (
            6,
            {"ulysses_active": True, "implementation": "SageImpl"},
            "tokens split over several devices",
        ),
        (6, {"gate_compress": torch.ones(1)}, "sparse"),
        (8, {}, "padded tokens"),
    ],
)
def test_other_attention_is_refused_by_name(
    tapped: Tapped, rows: int, more: dict[str, Any], reason: str
) -> None:
    module = engine()
    recorder = armed(tapped, module)
    attend(module, rows, **more)
    assert recorder.captures == []
    assert recorder.counts["ragged_attention", reason] == 1


@pytest.mark.parametrize(
    "name",
    [
        *("MiniMaxH3MLP", "MiniMaxH3Attention", "_minimax_h3_attention_core_impl"),
        *("UnquantizedLinearMethod", "SDPAImpl", "FlashAttentionImpl"),
    ],
)
def test_release_without_a_target_is_refused_by_its_name(tapped: Tapped, name: str) -> None:
    module = engine()
    delattr(module, name)
    with pytest.raises(EnvironmentLacking, match=f"{name} is not in this release"):
        armed(tapped, module)


def test_nvfp4_without_comfy_kitchen_is_left_to_sglang(tapped: Tapped) -> None:
    module = engine()
    module.scaled_mm_nvfp4 = None
    recorder = armed(tapped, module)
    assert recorder.errors == []
