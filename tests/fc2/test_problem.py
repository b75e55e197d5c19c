"""Shapes, padding and numerics of a problem."""

from __future__ import annotations

import pytest

from kclab.core.errors import BadUsage
from kclab.fc2.problem import Precision, Problem, parse_shape


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.NVFP4])
def test_canonical_rows_are_padded(precision: Precision) -> None:
    problem = Problem(precision, 37_810, 5_376, 14_336)
    assert (problem.m, problem.m_padded) == (37_810, 37_824)


def test_bf16_rows_are_not_padded() -> None:
    assert Problem(Precision.BF16, 37_810, 5_376, 14_336).m_padded == 37_810


def test_work_is_counted_over_logical_rows() -> None:
    problem = Problem(Precision.FP8, 37_810, 5_376, 14_336)
    assert problem.flops == 2 * 37_810 * 5_376 * 14_336
    assert problem.tflops(1.0) == pytest.approx(problem.flops / 1e9)


def test_shape_text() -> None:
    assert parse_shape(" 37810x5376X14336 ") == (37_810, 5_376, 14_336)


@pytest.mark.parametrize("text", ["", "1x2", "1x2x3x4", "1,2,3", "-1x2x3", "axbxc"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="MxNxK"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("precision", "shape"),
    [
        (Precision.NVFP4, (16, 12, 64)),
        (Precision.NVFP4, (16, 16, 48)),
        (Precision.FP8, (16, 16, 24)),
        (Precision.BF16, (0, 16, 16)),
    ],
)
def test_shape_that_the_precision_cannot_have_is_refused(
    precision: Precision, shape: tuple[int, int, int]
) -> None:
    with pytest.raises(BadUsage, match="shape"):
        Problem(precision, *shape)


def test_fast_accumulation_belongs_to_fp8() -> None:
    assert Problem(Precision.FP8, 16, 16, 16, fast_accumulation=True).numerics == "fp8_e4m3+fast"
    with pytest.raises(BadUsage, match="fast accumulation"):
        Problem(Precision.BF16, 16, 16, 16, fast_accumulation=True)
