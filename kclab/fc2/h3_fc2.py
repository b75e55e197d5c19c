"""FC2 of a MiniMax-H3 block as the lab runs it: producer, then the baseline or a candidate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from kclab.core.errors import BadUsage, CheckFailed
from kclab.fc2 import nvfp4
from kclab.fc2.backends import Backend, Gemm
from kclab.fc2.baseline import Baseline, accepted_baseline
from kclab.fc2.operands import Operands, quantise_fp8
from kclab.fc2.problem import BASELINE_WORKSPACE, Precision, Problem
from kclab.fc2.producer import produce
from kclab.h3.feed_forward import Fc2, Fc2Method, bias_of
from kclab.h3.packed import PackedLinear

if TYPE_CHECKING:
    from torch import Tensor, nn

Seen = Callable[["Tensor", Operands], None]
"""Told (gate_up, operands) before a product."""


def seen_by_nobody(gate_up: Tensor, operands: Operands) -> None:
    """Look at nothing."""


def weight_operands(precision: Precision, fc2: Fc2) -> Operands:
    """A block's FC2 weight as a problem takes it; the activation is empty.

    A weight that is stored in NVFP4 is taken as it is. Raises BadUsage for a biased FC2.
    """
    linear = fc2.linear
    if bias_of(linear) is not None:
        raise BadUsage("this FC2 has a bias; boundaries and gates are about FC2 without one.")
    nothing = torch.empty(0)
    if precision is Precision.NVFP4:
        made = _packed(linear) if isinstance(linear, PackedLinear) else _quantised(linear)
        scale = made.tensor_scale.reshape(1)
        return Operands(nothing, made.codes, None, made.scales, None, scale)
    weight = linear.dequantised() if isinstance(linear, PackedLinear) else _plain(linear)
    if precision is Precision.FP8:
        values, scale = quantise_fp8(weight)
        return Operands(nothing, values, weight_scale=scale)
    return Operands(nothing, weight)


def _packed(linear: PackedLinear) -> nvfp4.Nvfp4Tensor:
    return nvfp4.Nvfp4Tensor(linear.codes, linear.scales, linear.tensor_scale)


def _quantised(linear: nn.Module) -> nvfp4.Nvfp4Tensor:
    return nvfp4.quantise(_plain(linear))


def _plain(linear: nn.Module) -> Tensor:
    return linear.get_parameter("weight").detach()


class Weights:
    """FC2 weights of blocks in one precision, prepared once for as long as a block lives."""

    def __init__(self, precision: Precision):
        self._precision = precision
        self._known: WeakKeyDictionary[Fc2, Operands] = WeakKeyDictionary()

    def of(self, fc2: Fc2) -> Operands:
        """Operands without an activation. Raises BadUsage for a biased FC2."""
        if fc2 not in self._known:
            self._known[fc2] = weight_operands(self._precision, fc2)
        return self._known[fc2]


def check_shape(problem: Problem, gate_up: Tensor) -> None:
    """Refuse rows or columns that the outputs were not allocated for. Raises CheckFailed."""
    expected = (problem.m, 2 * problem.k)
    found = tuple(gate_up.shape)
    if found == expected:
        return
    if found[0] > problem.m:
        raise CheckFailed(
            f"FC2 got {found[0]} rows; the shared output was allocated for {problem.m}."
        )
    raise CheckFailed(f"FC2 got an input of shape {list(found)}, {list(expected)} is expected.")


class AcceptedFc2:
    """FC2 as users run it today: arm A inside the model."""

    def __init__(self, backend: Backend, problem: Problem, weights: Weights):
        backend.require(problem)
        self._backend, self._problem, self._weights = backend, problem, weights
        self._baseline: Baseline | None = None
        self._gemm: Gemm | None = None

    def method(self, fc2: Fc2, seen: Seen = seen_by_nobody) -> Fc2Method:
        """What to put in a block's FC2 place."""
        weights = self._weights.of(fc2)

        def call(gate_up: Tensor) -> Tensor:
            check_shape(self._problem, gate_up)
            operands = produce(self._problem, gate_up, weights)
            seen(gate_up, operands)
            return self._answer(operands)[: self._problem.m]

        return call

    def _answer(self, operands: Operands) -> Tensor:
        if self._baseline is None:
            self._gemm = self._backend.open(self._problem, operands, BASELINE_WORKSPACE)
            self._baseline = accepted_baseline(self._backend, self._problem, self._gemm)
        return self._baseline.call(operands)

    def close(self) -> None:
        """Free what the backend holds."""
        if self._gemm is not None:
            self._gemm.close()
            self._gemm = None


class CandidateFc2:
    """FC2 by one config through our runner: arm B inside the model.

    All blocks share the runner's output; a block reads it before the next one writes.
    """

    def __init__(self, gemm: Gemm, prepared: Any, weights: Weights):
        self._gemm, self._prepared, self._weights = gemm, prepared, weights

    def method(self, fc2: Fc2) -> Fc2Method:
        """What to put in a block's FC2 place."""
        weights, problem = self._weights.of(fc2), self._gemm.problem

        def call(gate_up: Tensor) -> Tensor:
            check_shape(problem, gate_up)
            self._gemm.run(self._prepared, produce(problem, gate_up, weights))
            return self._gemm.output[: problem.m]

        return call
