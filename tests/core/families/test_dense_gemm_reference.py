"""The GEMM reference against exact arithmetic and torch's own linear."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from kclab.core.families import FAMILIES
from tests.core.families.family_reference import load_run

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def gemm(tag: str, bias: bool):
    return load_run(FAMILIES["dense_gemm"].make(n=5, k=64, dtype=tag, bias=bias))


@pytest.mark.parametrize("tag", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_gemm_is_the_exact_product_rounded_once(tag, bias):
    A, W, b = (torch.randn(*shape).to(DTYPES[tag]) for shape in ((3, 64), (5, 64), (5,)))
    got = gemm(tag, bias)(*((A, W, b) if bias else (A, W)))
    exact = torch.zeros(3, 5, dtype=torch.float64)
    for m in range(3):
        for n in range(5):
            terms = (
                Fraction(float(x)) * Fraction(float(w)) for x, w in zip(A[m], W[n], strict=True)
            )
            exact[m, n] = float(sum(terms) + (Fraction(float(b[n])) if bias else 0))
    assert got.dtype == DTYPES[tag]
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(got.dtype).eps, atol=1e-5)


def test_gemm_agrees_with_torchs_linear_on_every_element():
    A, W, b = torch.randn(33, 64), torch.randn(5, 64), torch.randn(5)
    torch.testing.assert_close(gemm("fp32", True)(A, W, b), torch.nn.functional.linear(A, W, b))


def test_gemm_takes_no_rows():
    A, W = torch.zeros(0, 64).bfloat16(), torch.ones(5, 64).bfloat16()
    assert gemm("bf16", False)(A, W).shape == (0, 5)


def test_float64_inputs_make_the_gemm_its_own_oracle():
    A, W = torch.randn(3, 64).double(), torch.randn(5, 64).double()
    got = gemm("bf16", False)(A, W)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, A @ W.T)
