"""Packed linear layers where a GPU multiplies them as they are, with comfy-kitchen stood in for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kclab.core.errors import EnvironmentLacking
from kclab.fc2 import nvfp4
from kclab.h3.packed import PackedLinear, multiplies_natively, scales_shape


def make_layer(*, native: bool) -> PackedLinear:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) / 10
    made = nvfp4.quantise(weight)
    return PackedLinear(made.codes, made.scales, made.tensor_scale, native=native)


def quantize(rows: torch.Tensor, scale: torch.Tensor, *, pad_16x: bool) -> tuple[Any, Any]:
    assert pad_16x
    padded = torch.zeros(-(-len(rows) // 16) * 16, rows.shape[1])
    padded[: len(rows)] = rows.float()
    made = nvfp4.quantise(padded, scale)
    return made.codes, made.scales


def multiply(a: Any, b: Any, sa: Any, sb: Any, ba: Any, bb: Any, *, out_dtype: Any) -> Any:
    """comfy_kitchen.scaled_mm_nvfp4's arithmetic."""
    product = nvfp4.dequantise(a, ba) @ nvfp4.dequantise(b, bb).T
    return (product * (sa * sb)).to(out_dtype)


def test_native_layers_quantise_their_input_and_multiply_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kitchen = SimpleNamespace(quantize_nvfp4=quantize, scaled_mm_nvfp4=multiply)
    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen)
    x = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    found, plain = make_layer(native=True)(x), make_layer(native=False)(x)
    assert found.shape == plain.shape == (2, 5, 64)
    assert found.dtype == plain.dtype == torch.bfloat16
    distance = (found.float() - plain.float()).norm() / plain.float().norm()
    assert 0.01 < distance < 0.2


def test_a_dequantised_weight_is_rounded_once_from_float32() -> None:
    layer = make_layer(native=False)
    exact = nvfp4.dequantise(layer.codes, layer.scales).double() * layer.tensor_scale.double()
    assert torch.equal(layer.dequantised(), exact.float().bfloat16())


@pytest.mark.parametrize(("n", "k", "shape"), [(64, 96, (128, 8)), (5376, 14336, (5376, 896))])
def test_scales_have_the_shape_that_the_quantiser_makes(
    n: int, k: int, shape: tuple[int, int]
) -> None:
    assert scales_shape(n, k) == shape == nvfp4.swizzled_shape(n, k)


@pytest.mark.parametrize(
    ("capability", "native"), [((9, 0), False), ((10, 0), True), ((12, 0), True)]
)
def test_only_blackwell_and_later_multiply_packed(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setitem(sys.modules, "comfy_kitchen", SimpleNamespace())
    assert multiplies_natively("cuda") is native
    assert multiplies_natively("cpu") is False


def test_a_missing_comfy_kitchen_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    monkeypatch.setitem(sys.modules, "comfy_kitchen", None)
    with pytest.raises(EnvironmentLacking, match="pip install 'comfy-kitchen"):
        multiplies_natively("cuda")
