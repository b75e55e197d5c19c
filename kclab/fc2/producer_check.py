"""Whether a producer made what it should: sampled rows against an own float32 SwiGLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kclab.core.errors import CheckFailed
from kclab.fc2 import nvfp4
from kclab.fc2.operands import Operands
from kclab.fc2.problem import Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 64

LIMITS = {Precision.BF16: 0.005, Precision.FP8: 0.05, Precision.NVFP4: 0.15}
"""Relative RMS distance that rounding explains: 0.0024, 0.026 and 0.1 on Gaussian input. A gate in
the wrong half, swapped nibbles or scales in another layout give 0.5 and more."""


def check_producer(problem: Problem, gate_up: Tensor, operands: Operands) -> float:
    """Relative RMS distance over sampled rows. Raises CheckFailed beyond the limit."""
    count = min(ROWS, problem.m)
    rows = torch.unique(torch.linspace(0, problem.m - 1, count).round().long()).to(gate_up.device)
    truth = _reference(gate_up[rows])
    made = _decoded(problem, operands, rows)
    error = float((made - truth).norm() / truth.norm().clamp(min=1e-30))
    if not error <= LIMITS[problem.precision]:
        raise CheckFailed(
            f"the {problem.precision} producer is {error:.2g} (relative RMS) from its float32 "
            f"reference over {len(rows)} rows; rounding explains {LIMITS[problem.precision]}."
        )
    _check_padding(problem, operands)
    return error


def _reference(gate_up: Tensor) -> Tensor:
    """float32 x * sigmoid(x) * y of the first and second half."""
    half = gate_up.shape[1] // 2
    gate, up = gate_up[:, :half].float(), gate_up[:, half:].float()
    return gate / (1 + torch.exp(-gate)) * up


def _decoded(problem: Problem, operands: Operands, rows: Tensor) -> Tensor:
    """The activation's sampled rows in float32."""
    activation = operands.activation
    sampled = activation.view(torch.uint8)[rows].view(activation.dtype)
    if problem.precision is Precision.BF16:
        return sampled.float()
    assert operands.activation_scale is not None
    if problem.precision is Precision.FP8:
        return sampled.float() * operands.activation_scale
    assert operands.activation_tensor_scale is not None
    columns = problem.k // nvfp4.BLOCK
    scales = nvfp4.unswizzle(operands.activation_scale, problem.m_padded, columns)
    plain = scales.view(torch.uint8)[rows].view(scales.dtype)
    values = nvfp4.dequantise(sampled, nvfp4.swizzle(plain))
    return values * operands.activation_tensor_scale


def _check_padding(problem: Problem, operands: Operands) -> None:
    padding = operands.activation[problem.m :].view(torch.uint8)
    magnitude = padding & 0x77 if problem.precision is Precision.NVFP4 else padding
    if len(operands.activation) != problem.m_padded or bool(magnitude.any()):
        raise CheckFailed(
            f"the {problem.precision} producer's padding rows {problem.m} to "
            f"{problem.m_padded} are not zero."
        )
