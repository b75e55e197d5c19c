"""NVFP4's codes, packing, scale layout and rounding, against the documented numbers."""

from __future__ import annotations

import itertools

import pytest
import torch

from kclab.fc2 import nvfp4


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (130, 5), (1, 1), (300, 9)])
def test_swizzled_scale_lies_at_its_documented_offset(rows: int, columns: int) -> None:
    plain = torch.randint(0, 127, (rows, columns), dtype=torch.uint8)
    flat = nvfp4.swizzle(plain).reshape(-1)
    for row, column in itertools.product(range(rows), range(columns)):
        assert flat[nvfp4.scale_offset(row, column, columns)] == plain[row, column]


def test_swizzled_buffer_is_padded_to_whole_tiles() -> None:
    swizzled = nvfp4.swizzle(torch.full((130, 5), 7, dtype=torch.uint8))
    assert swizzled.shape == (256, 8)
    assert int((swizzled == 7).sum()) == 130 * 5


def test_unswizzle_undoes_swizzle() -> None:
    plain = torch.randint(0, 255, (200, 7), dtype=torch.uint8)
    assert torch.equal(nvfp4.unswizzle(nvfp4.swizzle(plain), 200, 7), plain)


def test_canonical_scale_shape() -> None:
    assert nvfp4.swizzled_shape(37_824, 14_336) == (37_888, 896)


def test_ties_round_to_the_even_code() -> None:
    # A block whose largest value is 6 has block scale 1 when the tensor scale is 1.
    row = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, 0.3, 0.7, 5.1, 0, -6]
    quantised = nvfp4.quantise(torch.tensor([row]), tensor_scale=torch.tensor(1.0))
    expected = [6, 0, 1, 1, 2, 2, 4, 4, -0.0, -1, -1, 0.5, 0.5, 6, 0, -6]
    assert nvfp4.dequantise(quantised.codes, quantised.scales)[0].tolist() == expected


def test_the_sign_of_zero_is_kept() -> None:
    quantised = nvfp4.quantise(torch.tensor([[-0.0] + [1.0] * 15]))
    assert int(nvfp4.unpack(quantised.codes)[0, 0]) == 8


def test_even_element_is_in_the_high_nibble() -> None:
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    assert nvfp4.pack(codes).tolist() == [[0x12, 0x34]]
    assert torch.equal(nvfp4.unpack(nvfp4.pack(codes)), codes)


def test_gaussian_error_is_the_published_one() -> None:
    values = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    quantised = nvfp4.quantise(values)
    back = nvfp4.dequantise(quantised.codes, quantised.scales) * quantised.tensor_scale
    assert float((back - values).norm() / values.norm()) == pytest.approx(0.0953, abs=0.002)


def test_zero_matrix_stays_zero() -> None:
    quantised = nvfp4.quantise(torch.zeros(4, 32))
    assert not nvfp4.dequantise(quantised.codes, quantised.scales).any()


def test_quantiser_agrees_with_comfy_kitchen() -> None:
    comfy = pytest.importorskip("comfy_kitchen")
    values = torch.randn(48, 160, generator=torch.Generator().manual_seed(3))
    ours = nvfp4.quantise(values)
    codes, scales = comfy.quantize_nvfp4(values.to(torch.float32), ours.tensor_scale)
    assert torch.equal(scales.view(torch.uint8), ours.scales.view(torch.uint8))
    assert torch.equal(codes.view(torch.uint8), ours.codes)
