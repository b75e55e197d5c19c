"""Making, padding, poisoning and dequantising operands."""

from __future__ import annotations

import pytest
import torch

from kclab.fc2.operands import (
    dequantise,
    exact_rows,
    make_operands,
    ones,
    poison_padding,
    synthetic,
)
from kclab.fc2.problem import Precision, Problem

ALL = list(Precision)


def problem(precision: Precision, m: int = 21) -> Problem:
    return Problem(precision, m, 32, 96)


@pytest.mark.parametrize("precision", ALL)
def test_quantised_product_is_near_the_real_one(precision: Precision) -> None:
    p = problem(precision)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(p.m, p.k, generator=generator)
    w = torch.randn(p.n, p.k, generator=generator)
    found = exact_rows(p, make_operands(p, x, w), torch.arange(p.m)).float()
    error = float((found - x @ w.T).norm() / (x @ w.T).norm())
    assert error < {Precision.BF16: 0.005, Precision.FP8: 0.06, Precision.NVFP4: 0.16}[precision]


@pytest.mark.parametrize("precision", ALL)
def test_padding_rows_are_zero(precision: Precision) -> None:
    p = problem(precision)
    activation, _, _ = dequantise(p, synthetic(p, 0, "cpu"))
    assert activation.shape[0] == p.m_padded
    assert not activation[p.m :].any()


@pytest.mark.parametrize("precision", ALL)
def test_a_seed_gives_the_same_bytes(precision: Precision) -> None:
    p = problem(precision)
    first, second = synthetic(p, 7, "cpu"), synthetic(p, 7, "cpu")
    other = synthetic(p, 8, "cpu")
    same = first.activation.view(torch.uint8)
    assert torch.equal(same, second.activation.view(torch.uint8))
    assert not torch.equal(same, other.activation.view(torch.uint8))


@pytest.mark.parametrize("precision", ALL)
def test_ones_give_k_everywhere(precision: Precision) -> None:
    p = problem(precision)
    found = exact_rows(p, ones(p, synthetic(p, 0, "cpu")), torch.arange(p.m))
    assert torch.equal(found, torch.full_like(found, p.k))


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.NVFP4])
def test_poison_is_in_the_padding_only(precision: Precision) -> None:
    p = problem(precision)
    poisoned = poison_padding(p, synthetic(p, 0, "cpu"))
    assert poisoned is not None
    activation, _, _ = dequantise(p, poisoned)
    assert activation[p.m :].isnan().all()
    assert not activation[: p.m].isnan().any()


def test_without_padding_there_is_nothing_to_poison() -> None:
    p = problem(Precision.FP8, m=32)
    assert poison_padding(p, synthetic(p, 0, "cpu")) is None
