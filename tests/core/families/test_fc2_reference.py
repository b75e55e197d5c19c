"""FC2's definitions: names, interfaces, and a reference that decodes operands by itself."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from kclab.core.errors import BadUsage
from kclab.core.families import FAMILIES, family_of
from kclab.fc2.operands import exact_rows, synthetic
from kclab.fc2.problem import Precision, Problem
from tests.core.families.family_reference import load_run


def inputs(problem: Problem) -> dict[str, Any]:
    tensors: dict[str, Any] = dict(synthetic(problem, 2, "cpu").tensors())
    if problem.precision is not Precision.BF16:
        tensors["rows"] = problem.m
    if problem.precision is Precision.FP8:
        tensors["fast_accumulation"] = problem.fast_accumulation
    return tensors


@pytest.mark.parametrize("precision", list(Precision))
def test_interface_fits_real_operands_and_reference_multiplies_them(precision: Precision) -> None:
    problem = Problem(precision, 21, 32, 96)
    definition = FAMILIES[f"fc2_{precision.family}"].make(n=32, k=96)
    assert definition.name == f"fc2_{precision.family}_n32_k96"
    assert family_of(definition.name) == f"fc2_{precision.family}"
    given = inputs(problem)
    facts = {
        name: (str(v.dtype).removeprefix("torch."), tuple(v.shape))
        if isinstance(v, torch.Tensor)
        else v
        for name, v in given.items()
    }
    axes = definition.check_inputs(facts)
    assert axes["M"] == problem.m_padded
    run = load_run(definition)
    assert list(inspect.signature(run).parameters) == list(definition.inputs)
    found = run(*[given[name] for name in definition.inputs])
    exact = exact_rows(problem, synthetic(problem, 2, "cpu"), torch.arange(problem.m))
    assert torch.allclose(found[: problem.m].float(), exact.float(), rtol=0.008, atol=1e-5)


def test_nvfp4_needs_whole_blocks() -> None:
    with pytest.raises(BadUsage, match="multiple of 32"):
        FAMILIES["fc2_nvfp4"].make(n=32, k=48)
