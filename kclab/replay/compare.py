"""One output of a reference against the engine's: every element, one verdict.

An element matches when |reference - engine| <= atol + rtol * |engine|, or when its bytes are the
same, as the output's tolerance says. NaN and infinity never match by default. Error sizes are
computed in float64 whatever the dtype; low-bit floats are decoded first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kclab.core.tolerance import ALLCLOSE, POLICIES, OutputTolerance
from kclab.core.units import counted
from kclab.db.verdicts import OutputVerdict
from kclab.replay.state import judge_state
from kclab.replay.tally import Tally
from kclab.replay.values import FlatValues, dtype_of, packing_of, position

PROVES_LITTLE = "proves_little"
"""The key of `OutputVerdict.metrics` that says why a pass is weak evidence."""


def compare_output(
    reference: Tensor, engine: Tensor, tolerance: OutputTolerance, name: str
) -> OutputVerdict:
    """Judge the engine's output `name` by the reference's.

    Both are dense tensors of any shape and dtype; the engine's is moved to the reference's
    device. A different dtype or shape is a failed verdict, not an error. `worst_index` is the
    element with the largest error, among the mismatched ones when there are any, or the first
    one that is not finite.
    """
    state = tolerance.policy in POLICIES
    if problem := _structural_problem(reference, engine, state):
        return unlike(name, engine, tolerance, problem)
    engine = engine.to(reference.device)
    if state:
        tally, broken, metrics = judge_state(reference, engine, tolerance)
    else:
        tally, broken, metrics = Tally(tolerance), None, {}
        tally.add_all(FlatValues.of(reference), FlatValues.of(engine))
    where, sides = _worst(tally, reference, engine)
    reason = _reason(tally, broken, where, sides)
    metrics |= _counts(tally, tolerance, passed=reason is None)
    return OutputVerdict(
        name=name,
        dtype=dtype_of(engine),
        passed=reason is None,
        policy=tolerance.policy,
        elements=tally.elements,
        mismatched=tally.mismatched,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        max_abs=tally.max_abs,
        rms=tally.rms,
        relative_rms=tally.relative_rms,
        worst_index=where,
        worst_engine=sides[0],
        worst_reference=sides[1],
        reason=reason,
        metrics=metrics or None,
    )


def unlike(
    name: str, engine: Tensor | None, tolerance: OutputTolerance, reason: str
) -> OutputVerdict:
    """A failed verdict for outputs that cannot be compared element by element."""
    elements = 0 if engine is None else engine.numel() * packing_of(dtype_of(engine))
    return OutputVerdict(
        name=name,
        dtype="none" if engine is None else dtype_of(engine),
        passed=False,
        policy=tolerance.policy,
        elements=elements,
        mismatched=elements,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        reason=reason,
    )


def _structural_problem(reference: Tensor, engine: Tensor, state: bool) -> str | None:
    if reference.layout != torch.strided:
        return f"the reference returned a {reference.layout} tensor, not a dense one"
    if reference.dtype != engine.dtype:
        return f"dtype: engine {dtype_of(engine)}, reference {dtype_of(reference)}"
    if reference.shape != engine.shape:
        return f"shape: engine {list(engine.shape)}, reference {list(reference.shape)}"
    if state and (engine.ndim < 2 or not engine.is_floating_point()):
        return f"a state is a float tensor of 2 or more dimensions, not {list(engine.shape)}"
    return None


def _worst(
    tally: Tally, reference: Tensor, engine: Tensor
) -> tuple[list[int] | None, tuple[str | None, str | None]]:
    index = tally.worst if tally.first_non_finite is None else tally.first_non_finite
    if index is None:
        return None, (None, None)
    left, right = FlatValues.of(reference), FlatValues.of(engine)
    where = position(index, tuple(engine.shape), packing_of(right.dtype))
    return where, (right.text(index), left.text(index))


def _reason(
    tally: Tally, broken: str | None, where: list[int] | None, sides: tuple[str | None, str | None]
) -> str | None:
    values = f"{where}: engine {sides[0]}, reference {sides[1]}"
    if tally.first_non_finite is not None:
        return f"non-finite: {_of(tally.non_finite, tally)}, first at {values}"
    if broken is not None:
        return f"{broken}; worst at {values}"
    if not tally.mismatched:
        return None
    what = "differ" if tally.tolerance.policy == ALLCLOSE else "differ in their bytes"
    return f"{_of(tally.mismatched, tally)} {what}, worst at {values}"


def _of(some: int, tally: Tally) -> str:
    return f"{some:,} of {counted(tally.elements, 'element')}"


def _counts(tally: Tally, tolerance: OutputTolerance, *, passed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tolerance.equal_nan:
        found["equal_nan"] = tally.matched_nan
    if tolerance.allow_inf:
        found["equal_inf"] = tally.matched_inf
    if tally.non_finite:
        found["non_finite"] = tally.non_finite
    if passed and (weakness := _weakness(tally, tolerance)):
        found[PROVES_LITTLE] = weakness
    return found


def _weakness(tally: Tally, tolerance: OutputTolerance) -> str | None:
    """Why a pass proves little: nothing was compared, or zeros would have passed as well."""
    if tally.elements == 0:
        return "no elements"
    if tally.matched_nan + tally.matched_inf == tally.elements:
        return "no finite element"
    atol = tolerance.atol or 0.0
    if tally.max_reference < atol:
        return (
            f"expected magnitude below atol: the largest |reference| is {tally.max_reference:.3g},"
            f" atol {atol:g}, so zeros pass; relative RMS error {tally.relative_rms:.3g}"
        )
    return None
