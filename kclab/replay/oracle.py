"""Who is wrong: engine and reference, each against the reference computed in float64.

Two roundings are always granted: of an intermediate and of the result (an epilogue that rounds
before it adds a bias does both). For a GEMM, accumulation may add to that
    at most    min(gamma_n, lambda sqrt(n) u) |A||W|^T   and, to be expected,
    about      lambda u (|A||W|^T + sqrt(n) |C|)
with n = K + 1 and u = 2^-23, since tensor cores truncate (Fasi, Higham, Mikaitis, Pranesh,
"Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021). gamma_n = n u / (1 - n u) is the
deterministic bound (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section
3.5); lambda sqrt(n) u the probabilistic one (Higham and Mary, "A new approach to probabilistic
rounding error analysis", SISC 2019, theorem 3.1), with lambda = 6; that zero-mean data need no
sqrt(n) is shown in their "Sharper probabilistic backward error analysis for basic linear algebra
kernels with random data", SISC 2020. For other operators there is no such bound: there a side is
off when the tolerance around the truth, the other side's distance, or its own crowd says so.

Distances are in ulp of the output's dtype, taken at no less than RMS(truth) / 16: an element that
cancels to nearly nothing would otherwise count thousands of ulp for the same absolute error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kclab.core.errors import KclabError
from kclab.core.tolerance import ALLCLOSE, BYTES, EXACT, OutputTolerance
from kclab.core.units import counted
from kclab.db.verdicts import OracleVerdict
from kclab.replay.float64 import magnitude_of, truth_of
from kclab.replay.references import Reference
from kclab.replay.ulp import FORMATS, Distance, Yardstick, ulp_at
from kclab.replay.values import FlatValues, dtype_of, packing_of, position

UNIT = 2.0**-23
"""Relative error of one truncated float32 addition."""
LAMBDA = 6.0
"""Confidence of the probabilistic bound: it fails once in 3e7 inner products at most."""
FLOOR = 1 / 16
"""Of RMS(truth): where ulps stop shrinking."""
HONEST = 12**-0.5
"""RMS ulp of one rounding of evenly spread values."""
HEAVY = 0.75
"""RMS of error over typical rounding from which a side is suspected (honest rounding: 0.3).
Twice this where no theory says what rounding does to the operator."""
TIMES_OTHER = 2.5
"""A suspect is off when it is this many times worse than the other side."""
FAR_FROM_OTHER = 32.0
"""So many times the other's RMS ulp is off whatever the bound grants: TF32 where float32 is due."""
OUTLIER = 6.0
"""An element that is so many times its crowd's RMS away stands out."""
GEMM_TYPES = frozenset({"gemm", "dense_gemm"})


def who_is_wrong(
    reference: Reference,
    inputs: Mapping[str, Any],
    engine: Mapping[str, Tensor],
    returned: Mapping[str, Tensor],
    tolerances: Mapping[str, OutputTolerance],
) -> list[OracleVerdict]:
    """A verdict on each output, in the definition's order.

    `returned` is what the reference gave in its own dtypes. A truth that cannot be had makes the
    verdict `undecided`, with the reason in `metrics["why"]`.
    """
    try:
        truths = truth_of(reference, inputs)
        terms = _gemm_terms(reference, inputs)
    except (KclabError, RuntimeError) as error:
        return [_undecided(f"no float64 run: {error}") for _ in tolerances]
    return [
        _judge(truths[name], engine.get(name), returned[name], tolerance, terms)
        for name, tolerance in tolerances.items()
    ]


class _GemmTerms:
    """What a GEMM's rounding bound is made of."""

    def __init__(self, magnitude: Tensor, bias: Tensor | None, n: int) -> None:
        self.magnitude = magnitude.reshape(-1)
        self.bias = None if bias is None else bias.abs().double().expand_as(magnitude).reshape(-1)
        self.n = n

    def at_most(self, begin: int, end: int) -> Tensor:
        """The largest error of accumulation, float64 [end - begin]."""
        gamma = self.n * UNIT / (1 - self.n * UNIT) if self.n * UNIT < 1 else math.inf
        return self.magnitude[begin:end] * min(gamma, LAMBDA * math.sqrt(self.n) * UNIT)

    def expected(self, begin: int, end: int, size: Tensor) -> Tensor:
        """The error of accumulation that is no surprise."""
        return LAMBDA * UNIT * (self.magnitude[begin:end] + math.sqrt(self.n) * size)

    def intermediate(self, begin: int, end: int, size: Tensor) -> Tensor:
        """The largest |A W^T| that may have been rounded before the bias came."""
        return size if self.bias is None else size + self.bias[begin:end]


def _gemm_terms(reference: Reference, inputs: Mapping[str, Any]) -> _GemmTerms | None:
    definition = reference.definition
    if definition.op_type not in GEMM_TYPES or "K" not in definition.axes:
        return None
    shapes = {name: value.shape for name, value in inputs.items() if isinstance(value, Tensor)}
    magnitude = magnitude_of(reference, inputs)
    bias = inputs.get("bias")
    n = definition.bind_axes(shapes)["K"] + 1
    return _GemmTerms(magnitude, bias if isinstance(bias, Tensor) else None, n)


def _undecided(why: str) -> OracleVerdict:
    return OracleVerdict("undecided", metrics={"why": why})


def _judge(
    truth: Tensor,
    engine: Tensor | None,
    reference: Tensor,
    tolerance: OutputTolerance,
    terms: _GemmTerms | None,
) -> OracleVerdict:
    if engine is None:
        return _undecided("the engine's output was not captured")
    engine = engine.to(reference.device)
    dtype = dtype_of(engine)
    if not engine.shape == reference.shape == truth.shape or engine.dtype != reference.dtype:
        return _undecided("the outputs differ in dtype or shape")
    if dtype == "float64":
        return _undecided("the output is float64 itself")
    if dtype not in FORMATS:
        return _judge_exact(truth, engine, reference)
    if bool(truth.isnan().any()):
        return _undecided("the reference gives NaN in float64 too, which is no truth to measure by")
    return _Measurement(truth, engine, reference, tolerance, terms).verdict()


def _judge_exact(truth: Tensor, engine: Tensor, reference: Tensor) -> OracleVerdict:
    """Integers and bool: a side is off where it differs from what float64 gives."""
    off = {
        "engine": int((engine != truth).sum()),
        "reference": int((reference != truth).sum()),
    }
    return OracleVerdict(
        _who(off["engine"] > 0, off["reference"] > 0),
        metrics={f"{side}_differs": count for side, count in off.items()},
    )


def _who(engine: bool, reference: bool) -> str:
    if engine and reference:
        return "both"
    return "engine" if engine else "reference" if reference else "neither"


class _Measurement:
    """Both sides of one floating output, measured against its truth in one pass."""

    def __init__(
        self,
        truth: Tensor,
        engine: Tensor,
        reference: Tensor,
        tolerance: OutputTolerance,
        terms: _GemmTerms | None,
    ) -> None:
        self.shape = tuple(engine.shape)
        self.dtype = dtype_of(engine)
        self.tolerance = tolerance
        self.terms = terms
        self.truth = FlatValues.of(_real(truth))
        self.values = {
            "engine": FlatValues.of(_real(engine)),
            "reference": FlatValues.of(_real(reference)),
        }
        self.distance = {"engine": Distance(), "reference": Distance()}
        self.bound_squares = 0.0
        """Sum of (typical rounding in ulp) squared."""
        self.floor = FLOOR * self._truth_rms()
        self._measure()

    def _truth_rms(self) -> float:
        squares = count = 0.0
        for begin, end in self.truth.spans():
            values = torch.nan_to_num(self.truth.values(begin, end), 0.0, 0.0, 0.0)
            squares += float(values.square().sum())
            count += end - begin
        return math.sqrt(squares / count) if count else 0.0

    def _measure(self) -> None:
        packing = packing_of(self.dtype)
        for begin, end in self.truth.spans():
            truth = self.truth.values(begin, end)
            first = begin * packing
            reach = self._reachable(truth)
            chunk = self._yardstick(torch.nan_to_num(truth, 0.0, 0.0, 0.0).abs(), first)
            self.bound_squares += float((chunk.typical / chunk.ulp).square().sum())
            for side, values in self.values.items():
                own = values.values(begin, end)
                same = (own == reach) | (torch.isnan(own) & torch.isnan(truth))
                broken = ~(torch.isfinite(own) & torch.isfinite(reach)) & ~same
                error = torch.where(same, 0.0, (own - truth).abs())
                self.distance[side].add(first, error, chunk, broken)

    def _reachable(self, truth: Tensor) -> Tensor:
        """The truth with what overflows the output's dtype made infinite."""
        if self.dtype not in ("float16", "bfloat16", "float32"):
            return truth
        rounded = truth.to(getattr(torch, self.dtype)).double()
        return torch.where(torch.isinf(rounded), rounded, truth)

    def _yardstick(self, size: Tensor, first: int) -> Yardstick:
        ulp = ulp_at(size.clamp_min(self.floor), self.dtype)
        last = first + size.numel()
        nothing = torch.full_like(size, math.inf)
        typical, bound, tolerable = ulp, nothing, nothing
        if self.terms is not None:
            rounded = self.terms.intermediate(first, last, size).clamp_min(self.floor)
            two = (ulp + ulp_at(rounded, self.dtype)) / 2
            typical = two + self.terms.expected(first, last, size)
            bound = two + self.terms.at_most(first, last)
        if self.tolerance.policy == ALLCLOSE:
            tolerable = (self.tolerance.atol or 0.0) + (self.tolerance.rtol or 0.0) * size
        return Yardstick(ulp, typical, bound, tolerable)

    def _off(self, side: str) -> str | None:
        """Why a side is off; None while rounding explains it."""
        own = self.distance[side]
        other = self.distance["reference" if side == "engine" else "engine"]
        crowd = max(own.trimmed_rms_load, other.trimmed_rms_load)
        stands_out = own.max_load > OUTLIER * (crowd if self.terms else 1 + crowd)
        heavy = HEAVY if self.terms else 2 * HEAVY
        if own.broken:
            return f"{_elements(own.broken)} not finite where the truth is, or the reverse"
        # A GEMM's bound excuses what a tight tolerance does not, unless one element stands out.
        if own.intolerable and (stands_out or self.terms is None):
            return f"{_elements(own.intolerable)} outside the tolerance around the truth"
        if self.tolerance.policy in (BYTES, EXACT) and own.max_abs > 0 == other.max_abs:
            return "it is not what float64 gives to the bit, as the other side is"
        if own.beyond:
            return f"{_elements(own.beyond)} farther off than rounding can take any"
        if own.rms_load > max(heavy, TIMES_OTHER * other.rms_load):
            return f"its RMS distance of {own.rms_ulp:.3g} ulp is more than rounding explains"
        if own.rms_ulp > FAR_FROM_OTHER * max(other.rms_ulp, HONEST):
            return (
                f"its RMS distance is {own.rms_ulp / max(other.rms_ulp, HONEST):.0f} times as far"
            )
        if stands_out and self.terms is None:
            return f"one element is {own.max_ulp:.3g} ulp off, the others {crowd:.2g} (RMS)"
        return None

    def verdict(self) -> OracleVerdict:
        """The verdict, with both distances."""
        if not self.distance["engine"].elements:
            return _undecided("no elements")
        engine, reference = self.distance["engine"], self.distance["reference"]
        why = {side: self._off(side) for side in self.values}
        return OracleVerdict(
            verdict=_who(why["engine"] is not None, why["reference"] is not None),
            engine_max_ulp=math.inf if engine.broken else engine.max_ulp,
            engine_rms_ulp=engine.rms_ulp,
            engine_max_abs=engine.max_abs,
            reference_max_ulp=math.inf if reference.broken else reference.max_ulp,
            reference_rms_ulp=reference.rms_ulp,
            reference_max_abs=reference.max_abs,
            bound_ulp=math.sqrt(self.bound_squares / engine.elements) if self.terms else None,
            metrics={"bound": "gemm" if self.terms else "none", **self._details(why)},
        )

    def _details(self, why: Mapping[str, str | None]) -> dict[str, Any]:
        details: dict[str, Any] = {}
        for side, reason in why.items():
            index = self.distance[side].worst
            if reason is None or index is None:
                continue
            details[side] = {
                "why": reason,
                "index": self._position(index),
                "value": self.values[side].text(index),
                "truth": f"{float(self.truth.text(index).split()[0]):.9g}",
            }
        return details

    def _position(self, index: int) -> list[int]:
        if self.dtype == "complex64":
            index //= 2
        return position(index, self.shape, packing_of(self.dtype))


def _real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _elements(count: int) -> str:
    return f"{counted(count, 'element')} {'is' if count == 1 else 'are'}"
