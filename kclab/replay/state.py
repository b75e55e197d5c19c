"""The policies of a recurrent state: judged by relative norms, whole and per head.

The state is [..., heads, rows, columns]; each trailing matrix is one head of one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kclab.core.tolerance import ALLCLOSE, POLICIES, OutputTolerance
from kclab.replay.tally import Tally
from kclab.replay.values import CPU_CHUNK, DEVICE_CHUNK, FlatValues

TINY = 1e-12
"""A norm below this counts as this, so that an all-zero state has a ratio."""


def judge_state(
    reference: Tensor, engine: Tensor, tolerance: OutputTolerance
) -> tuple[Tally, str | None, dict[str, Any]]:
    """(tally, why it fails or None, metrics) of a float state of two or more dimensions.

    Both tensors have one dtype, shape and device. `tally.mismatched` counts the elements whose
    error exceeds `relative_max` of the largest |engine|.
    """
    bounds = POLICIES[tolerance.policy]
    left, right = FlatValues.of(reference), FlatValues.of(engine)
    # Nothing finite exceeds this tolerance: the tally only measures, and finds NaN and infinity.
    tally = Tally(OutputTolerance(ALLCLOSE, 0.0, math.inf, tolerance.allow_inf))
    tally.add_all(left, right)
    measured = {
        "relative_rms": _ratio(math.sqrt(tally.error_squares), math.sqrt(tally.engine_squares)),
        "relative_max": _ratio(tally.max_abs, tally.max_engine),
        "head_relative_rms": _worst_head(left.flat, right.flat, engine.shape),
    }
    if tally.first_non_finite is not None:
        # A row's JSON holds no infinity: ratios over non-finite elements say nothing anyway.
        return tally, "non-finite", {}
    limits = {key: getattr(bounds, key) for key in measured}
    broken = [
        f"{key} {value:.3g} exceeds {limits[key]:g}"
        for key, value in measured.items()
        if not value <= limits[key]
    ]
    if measured["relative_max"] > bounds.relative_max:
        tally.mismatched = _beyond(left, right, bounds.relative_max * tally.max_engine)
    return tally, "; ".join(broken) or None, measured


def _ratio(error: float, scale: float) -> float:
    return error / max(scale, TINY)


def _beyond(reference: FlatValues, engine: FlatValues, limit: float) -> int:
    return sum(
        int(((reference.values(a, b) - engine.values(a, b)).abs() > limit).sum())
        for a, b in engine.spans()
    )


def _worst_head(reference: Tensor, engine: Tensor, shape: torch.Size) -> float:
    """The largest relative RMS error over all trailing matrices."""
    size = shape[-1] * shape[-2]
    if engine.numel() == 0:
        return 0.0
    worst = 0.0
    for left, right in _head_chunks(reference.view(-1, size), engine.view(-1, size)):
        error = (left - right).norm(dim=1)
        scale = right.norm(dim=1).clamp_min(TINY)
        worst = max(worst, float((error / scale).nan_to_num(nan=math.inf).amax()))
    return worst


def _head_chunks(reference: Tensor, engine: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of [heads, elements] in float64, a chunk's worth of heads at a time."""
    budget = CPU_CHUNK if engine.device.type == "cpu" else DEVICE_CHUNK
    step = max(1, budget // engine.shape[1])
    for begin in range(0, engine.shape[0], step):
        yield reference[begin : begin + step].double(), engine[begin : begin + step].double()
