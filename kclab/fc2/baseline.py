"""Arm A: the GEMM as users call it today, refused where something else would answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.errors import CheckFailed, EnvironmentLacking
from kclab.fc2.backends import Backend, Gemm
from kclab.fc2.operands import Operands, dequantise
from kclab.fc2.problem import BASELINE_WORKSPACE, Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

COMFY_OPERATION = "scaled_mm_nvfp4"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted way to compute a problem."""

    name: str
    call: Callable[[Operands], Tensor]
    """Operands to [M padded, N] bfloat16."""


def accepted_baseline(backend: Backend, problem: Problem, gemm: Gemm) -> Baseline:
    """What users run for this problem on this backend.

    Raises EnvironmentLacking where it is missing or would fall back to something else.
    """
    if backend.name == "cpu":
        return _cpu(problem)
    if backend.device == "cpu":
        return _stand_in(gemm)
    if problem.precision is Precision.BF16:
        linear = torch.nn.functional.linear
        return Baseline("torch.nn.functional.linear", lambda o: linear(o.activation, o.weight))
    if problem.precision is Precision.FP8:
        return _scaled_mm(problem)
    return _comfy()


def _cpu(problem: Problem) -> Baseline:
    # Holding the operands keeps their identity: a freed object's id may be given out again.
    known: list[tuple[Operands, tuple[Tensor, Tensor, float]]] = []

    def call(operands: Operands) -> Tensor:
        if not known or known[0][0] is not operands:
            known[:] = [(operands, dequantise(problem, operands))]
        activation, weight, alpha = known[0][1]
        return (torch.nn.functional.linear(activation, weight) * alpha).to(torch.bfloat16)

    return Baseline("torch.nn.functional.linear (fp32, dequantised)", call)


def _stand_in(gemm: Gemm) -> Baseline:
    """Over the fake libraries torch has no CUDA: the heuristic's first choice stands in."""
    first = gemm.enumerate(BASELINE_WORKSPACE, 1)[0]
    prepared = gemm.prepare(first.config)

    def call(operands: Operands) -> Tensor:
        gemm.run(prepared, operands)
        return gemm.output

    return Baseline("stand-in: heuristic's first choice", call)


def _scaled_mm(problem: Problem) -> Baseline:
    def call(operands: Operands) -> Tensor:
        assert operands.activation_scale is not None and operands.weight_scale is not None
        return torch._scaled_mm(
            operands.activation,
            operands.weight.t(),
            operands.activation_scale.reshape(()),
            operands.weight_scale.reshape(()),
            out_dtype=torch.bfloat16,
            use_fast_accum=problem.fast_accumulation,
        )

    return Baseline(f"torch._scaled_mm(use_fast_accum={problem.fast_accumulation})", call)


def _comfy() -> Baseline:
    try:
        import comfy_kitchen
    except ImportError as error:
        raise EnvironmentLacking(
            "the nvfp4 baseline is comfy-kitchen's, which is not installed: "
            "pip install 'comfy-kitchen[cublas]'."
        ) from error

    def call(operands: Operands) -> Tensor:
        result: Tensor = comfy_kitchen.scaled_mm_nvfp4(**comfy_arguments(operands))
        return result

    def checked(operands: Operands) -> Tensor:
        require_comfy_backend(comfy_arguments(operands))
        return call(operands)

    return Baseline("comfy_kitchen.scaled_mm_nvfp4", checked)


def comfy_arguments(operands: Operands) -> dict[str, Any]:
    """comfy-kitchen's arguments for NVFP4 operands, with alpha computed beforehand."""
    return {
        "a": operands.activation,
        "b": operands.weight,
        "tensor_scale_a": operands.activation_tensor_scale,
        "tensor_scale_b": operands.weight_tensor_scale,
        "block_scale_a": operands.activation_scale,
        "block_scale_b": operands.weight_scale,
        "out_dtype": torch.bfloat16,
        "alpha": operands.alpha,
    }


def require_comfy_backend(arguments: dict[str, Any]) -> None:
    """Raise CheckFailed unless comfy-kitchen's CUDA backend would answer this call.

    Below compute capability 10.0 it silently takes another one, which computes other numbers.
    """
    from comfy_kitchen.registry import registry

    answering = registry.get_capable_backend(COMFY_OPERATION, arguments)
    if answering != "cuda":
        raise CheckFailed(
            f"the baseline comfy_kitchen.{COMFY_OPERATION} would be answered by its {answering!r} "
            "backend here, not by 'cuda': that is another computation, so nothing is compared."
        )
