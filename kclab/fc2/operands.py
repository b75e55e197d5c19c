"""The tensors of one boundary, as the library takes them: made, padded, dequantised."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch

from kclab.fc2 import nvfp4
from kclab.fc2.problem import Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

E4M3_MAX = 448.0
"""Largest float8_e4m3fn."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Inputs of one GEMM. Scales are in the library's own layout; unused ones are None."""

    activation: Tensor
    """[M padded, K] bfloat16 or float8_e4m3fn, or [M padded, K / 2] uint8."""
    weight: Tensor
    """[N, K], or [N, K / 2]."""
    activation_scale: Tensor | None = None
    """FP8: float32 [1]. NVFP4: swizzled float8_e4m3fn."""
    weight_scale: Tensor | None = None
    activation_tensor_scale: Tensor | None = None
    """NVFP4: float32 [1]."""
    weight_tensor_scale: Tensor | None = None
    alpha: Tensor | None = None
    """NVFP4: float32 [1], the product of both tensor scales, on the device."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.activation.device

    def to(self, device: str) -> Operands:
        """The same operands on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are set, by field name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def pad_rows(matrix: Tensor, rows: int) -> Tensor:
    """A matrix with zero rows appended."""
    if matrix.shape[0] == rows:
        return matrix.contiguous()
    padded = torch.zeros(rows, *matrix.shape[1:], dtype=matrix.dtype, device=matrix.device)
    padded.view(torch.uint8)[: matrix.shape[0]] = matrix.contiguous().view(torch.uint8)
    return padded


def make_operands(problem: Problem, activation: Tensor, weight: Tensor) -> Operands:
    """Quantise bf16 or fp32 matrices [M, K] and [N, K] for a problem."""
    if problem.precision is Precision.BF16:
        padded = pad_rows(activation.to(torch.bfloat16), problem.m_padded)
        return Operands(padded, weight.to(torch.bfloat16).contiguous())
    if problem.precision is Precision.FP8:
        return _fp8(problem, activation, weight)
    return _nvfp4(problem, activation, weight)


def _fp8(problem: Problem, activation: Tensor, weight: Tensor) -> Operands:
    left, left_scale = quantise_fp8(activation)
    right, right_scale = quantise_fp8(weight)
    return Operands(pad_rows(left, problem.m_padded), right, left_scale, right_scale)


def quantise_fp8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(float8_e4m3fn values, float32 [1] scale) with the largest magnitude at 448."""
    scale = (matrix.abs().amax().float() / E4M3_MAX).clamp(min=1e-12).reshape(1)
    return (matrix.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def _nvfp4(problem: Problem, activation: Tensor, weight: Tensor) -> Operands:
    left = nvfp4.quantise(pad_rows(activation, problem.m_padded))
    right = nvfp4.quantise(weight)
    return Operands(
        left.codes,
        right.codes,
        left.scales,
        right.scales,
        left.tensor_scale.reshape(1),
        right.tensor_scale.reshape(1),
        (left.tensor_scale * right.tensor_scale).reshape(1).contiguous(),
    )


def synthetic(problem: Problem, seed: int, device: str) -> Operands:
    """Random operands of a problem: an activation as after SwiGLU, a Gaussian weight.

    Random values, since constant inputs draw less power and measure too fast. The same seed gives
    the same bytes on devices of one kind only.
    """
    gate_up, weight = synthetic_inputs(problem, seed, device)
    gate, up = gate_up.chunk(2, dim=-1)
    return make_operands(problem, torch.nn.functional.silu(gate) * up, weight)


def synthetic_inputs(problem: Problem, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """(gate_up [M, 2K], weight [N, K]) in bfloat16: what `synthetic` starts from."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, device=device, dtype=torch.bfloat16)

    return normal(problem.m, 2 * problem.k), normal(problem.n, problem.k) / problem.k**0.5


def ones(problem: Problem, like: Operands) -> Operands:
    """Operands that are 1 everywhere: each output element must be exactly K (rounded to bf16)."""
    device = str(like.device)
    one = torch.ones(1, device=device)
    if problem.precision is Precision.BF16:
        return Operands(torch.ones_like(like.activation), torch.ones_like(like.weight))
    if problem.precision is Precision.FP8:
        left = torch.ones(like.activation.shape, device=device).to(torch.float8_e4m3fn)
        right = torch.ones(like.weight.shape, device=device).to(torch.float8_e4m3fn)
        return Operands(left, right, one, one.clone())
    assert like.activation_scale is not None and like.weight_scale is not None
    return Operands(
        torch.full_like(like.activation, 0x22),
        torch.full_like(like.weight, 0x22),
        torch.full_like(like.activation_scale.view(torch.uint8), 0x38).view(torch.float8_e4m3fn),
        torch.full_like(like.weight_scale.view(torch.uint8), 0x38).view(torch.float8_e4m3fn),
        one,
        one.clone(),
        one.clone(),
    )


def poison_padding(problem: Problem, operands: Operands) -> Operands | None:
    """The operands with NaN in the activation's padding rows; None where there is no padding.

    NVFP4 codes have no NaN: their padded rows get NaN block scales instead.
    """
    if problem.m == problem.m_padded:
        return None
    if problem.precision is not Precision.NVFP4:
        activation = operands.activation.clone()
        # All bits set is a NaN in float8_e4m3fn and in bfloat16, and every device can fill bytes.
        activation[problem.m :].view(torch.uint8).fill_(0xFF)
        return replace(operands, activation=activation)
    assert operands.activation_scale is not None
    columns = problem.k // nvfp4.BLOCK
    shape = nvfp4.swizzled_shape(problem.m_padded, problem.k)
    plain = nvfp4.unswizzle(operands.activation_scale, *shape).view(torch.uint8)
    plain[problem.m :, :columns] = nvfp4.NAN_SCALE
    poisoned = nvfp4.swizzle(plain.view(torch.float8_e4m3fn))
    return replace(operands, activation_scale=poisoned)


def dequantise(problem: Problem, operands: Operands) -> tuple[Tensor, Tensor, float]:
    """(activation [M padded, K], weight [N, K], alpha) in float32; their product is the output."""
    if problem.precision is Precision.BF16:
        return operands.activation.float(), operands.weight.float(), 1.0
    assert operands.activation_scale is not None and operands.weight_scale is not None
    if problem.precision is Precision.FP8:
        alpha = float(operands.activation_scale) * float(operands.weight_scale)
        return operands.activation.float(), operands.weight.float(), alpha
    assert operands.alpha is not None
    return (
        nvfp4.dequantise(operands.activation, operands.activation_scale),
        nvfp4.dequantise(operands.weight, operands.weight_scale),
        float(operands.alpha),
    )


def exact_rows(problem: Problem, operands: Operands, rows: Tensor) -> Tensor:
    """The product of some logical rows in float64, rounded once to bf16: the own reference."""
    activation, weight, alpha = dequantise(problem, operands)
    product = activation[rows.to(activation.device)].double() @ weight.double().T
    return (product * alpha).to(torch.bfloat16)
