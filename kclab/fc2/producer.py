"""What comes before FC2 in its block: SwiGLU, then quantisation, padded as the library wants."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kclab.fc2 import nvfp4
from kclab.fc2.operands import Operands, pad_rows, quantise_fp8
from kclab.fc2.problem import Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [M, 2K], the gate in the first half (the checkpoint's order)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def produce(problem: Problem, gate_up: Tensor, weights: Operands) -> Operands:
    """The operands of a problem from its producer's input; weights are taken as they are."""
    activation = swiglu(gate_up)
    if problem.precision is Precision.BF16:
        return replace(weights, activation=pad_rows(activation, problem.m_padded))
    if problem.precision is Precision.FP8:
        values, scale = quantise_fp8(activation)
        padded = pad_rows(values, problem.m_padded)
        return replace(weights, activation=padded, activation_scale=scale)
    made = nvfp4.quantise(pad_rows(activation, problem.m_padded))
    assert weights.weight_tensor_scale is not None
    tensor_scale = made.tensor_scale.reshape(1)
    return replace(
        weights,
        activation=made.codes,
        activation_scale=made.scales,
        activation_tensor_scale=tensor_scale,
        alpha=(tensor_scale * weights.weight_tensor_scale).contiguous(),
    )
