"""The accepted baseline is refused where something else would answer for it."""

from __future__ import annotations

import sys

import pytest
import torch

from kclab.core.errors import CheckFailed, EnvironmentLacking
from kclab.fc2.backends.cpu import Cpu
from kclab.fc2.baseline import accepted_baseline, comfy_arguments, require_comfy_backend
from kclab.fc2.operands import exact_rows, synthetic
from kclab.fc2.parity import compare
from kclab.fc2.problem import Precision, Problem


class Cuda(Cpu):
    """Claims to be a CUDA backend, to see what would be taken as its baseline."""

    name = "cublaslt"
    device = "cuda"


def problem(precision: Precision, *, fast: bool = False) -> Problem:
    return Problem(precision, 32, 32, 96, fast)


def test_comfy_kitchen_answered_by_another_backend_is_refused() -> None:
    pytest.importorskip("comfy_kitchen")
    p = problem(Precision.NVFP4)
    with pytest.raises(CheckFailed, match="would be answered by its 'eager' backend"):
        require_comfy_backend(comfy_arguments(synthetic(p, 0, "cpu")))


def test_missing_comfy_kitchen_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comfy_kitchen", None)
    p = problem(Precision.NVFP4)
    gemm = Cpu().open(p, synthetic(p, 0, "cpu"), 0)
    with pytest.raises(EnvironmentLacking, match="pip install 'comfy-kitchen"):
        accepted_baseline(Cuda(), p, gemm)


@pytest.mark.parametrize(
    ("precision", "fast", "name"),
    [
        (Precision.BF16, False, "torch.nn.functional.linear"),
        (Precision.FP8, False, "torch._scaled_mm(use_fast_accum=False)"),
        (Precision.FP8, True, "torch._scaled_mm(use_fast_accum=True)"),
    ],
)
def test_baseline_is_what_users_call(precision: Precision, fast: bool, name: str) -> None:
    p = problem(precision, fast=fast)
    operands = synthetic(p, 0, "cpu")
    baseline = accepted_baseline(Cuda(), p, Cpu().open(p, operands, 0))
    assert baseline.name == name
    found = compare(baseline.call(operands), exact_rows(p, operands, torch.arange(p.m)))
    assert found.different <= 0.01 * found.elements
