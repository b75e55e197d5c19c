"""Parity is about bytes, not about numbers that compare equal."""

from __future__ import annotations

import hashlib

import pytest
import torch

from kclab.fc2.parity import compare, output_class, output_sha256, same_bytes

BF16 = torch.bfloat16


def test_equal_tensors_are_exact() -> None:
    value = torch.randn(5, 7, dtype=BF16)
    found = compare(value.clone(), value)
    assert found.exact and found.different == 0 and found.max_abs == 0.0
    assert found.actual_sha256 == found.expected_sha256


def test_minus_zero_differs_from_zero() -> None:
    found = compare(torch.tensor([-0.0], dtype=BF16), torch.tensor([0.0], dtype=BF16))
    assert (found.exact, found.different, found.max_abs) == (False, 1, 0.0)


def test_nan_equals_its_own_bits_only() -> None:
    nan = torch.tensor([0x7FC0], dtype=torch.int16).view(BF16)
    other = torch.tensor([0x7FC1], dtype=torch.int16).view(BF16)
    assert compare(nan, nan.clone()).exact
    found = compare(nan, other)
    assert not found.exact and found.max_abs is None and found.reason


@pytest.mark.parametrize("other", [torch.zeros(2, 2), torch.zeros(4, dtype=BF16)])
def test_other_dtype_or_shape_is_never_exact(other: torch.Tensor) -> None:
    found = compare(torch.zeros(2, 2, dtype=BF16), other)
    assert (found.exact, found.different, found.elements) == (False, 4, 4)
    assert not same_bytes(torch.zeros(2, 2, dtype=BF16), other)


def test_distances_are_over_all_elements() -> None:
    expected = torch.zeros(8, dtype=BF16)
    actual = expected.clone()
    actual[2], actual[5] = 0.5, -2.0
    found = compare(actual, expected)
    assert (found.different, found.max_abs) == (2, 2.0)
    assert found.mean_abs == pytest.approx(2.5 / 8)


def test_sha256_is_of_the_bytes_alone() -> None:
    value = torch.tensor([[1.0, 2.0]], dtype=BF16)
    expected = hashlib.sha256(value.view(torch.int16).numpy().tobytes()).hexdigest()
    assert output_sha256(value) == expected


def test_class_tells_swapped_elements_apart() -> None:
    value = torch.randn(33, 17, dtype=BF16)
    swapped = value.clone()
    swapped[0, 0], swapped[5, 5] = value[5, 5].clone(), value[0, 0].clone()
    assert output_class(value) == output_class(value.clone())
    assert output_class(value) != output_class(swapped)


def test_class_sees_one_bit() -> None:
    value = torch.zeros(64, 64, dtype=BF16)
    changed = value.clone()
    changed[63, 63] = -0.0
    assert output_class(value) != output_class(changed)
