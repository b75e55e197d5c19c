"""Adding up how two tensors differ, chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kclab.core.tolerance import ALLCLOSE, OutputTolerance
from kclab.replay.values import FlatValues, packing_of


@dataclass(slots=True)
class Tally:
    """Everything known about a pair of outputs once its chunks are added."""

    tolerance: OutputTolerance
    elements: int = 0
    mismatched: int = 0
    max_abs: float = 0.0
    """Over the elements that are finite on both sides."""
    error_squares: float = 0.0
    engine_squares: float = 0.0
    reference_squares: float = 0.0
    max_engine: float = 0.0
    max_reference: float = 0.0
    worst: int | None = None
    """Flat index of the largest error, among the mismatched elements when there are any."""
    worst_error: float = -1.0
    worst_mismatched: bool = False
    non_finite: int = 0
    """Elements that fail because a side is NaN or infinite."""
    first_non_finite: int | None = None
    matched_nan: int = 0
    matched_inf: int = 0

    def add_all(self, reference: FlatValues, engine: FlatValues) -> None:
        """Compare every element of two tensors of one dtype and size, on one device."""
        by_bits = self.tolerance.policy != ALLCLOSE
        packing = packing_of(engine.dtype)
        for begin, end in engine.spans():
            differs = None
            if by_bits:
                differs = reference.bits(begin, end) != engine.bits(begin, end)
                differs = differs.any(dim=1) if differs.ndim > 1 else differs
            self._add(
                begin * packing, reference.values(begin, end), engine.values(begin, end), differs
            )

    def _add(self, start: int, reference: Tensor, engine: Tensor, differs: Tensor | None) -> None:
        """`differs` marks elements whose bits differ; None where the tolerance decides."""
        self.elements += engine.numel()
        if self._add_finite(start, reference, engine, differs):
            return
        kept = self._add_non_finite(start, reference, engine)
        zero = torch.zeros((), dtype=engine.dtype, device=engine.device)
        masked = None if differs is None else differs & kept
        self._add_finite(
            start, torch.where(kept, reference, zero), torch.where(kept, engine, zero), masked, True
        )

    def _add_finite(
        self,
        start: int,
        reference: Tensor,
        engine: Tensor,
        differs: Tensor | None,
        certain: bool = False,
    ) -> bool:
        """Add a chunk; False, and nothing added, if some value in it is not finite.

        The sum of all magnitudes tells, at a fraction of a separate pass: it is finite unless a
        value is not, or the sum itself overflows, which `certain` accepts.
        """
        error, size, truth = ((t.abs().double()) for t in (reference - engine, engine, reference))
        bad = differs if differs is not None else error > self._allowed(size)
        facts = torch.stack(
            (
                error.square().sum(),
                size.square().sum(),
                truth.square().sum(),
                error.amax(),
                size.amax(),
                truth.amax(),
                bad.sum().double(),
            )
        ).tolist()
        if not certain and not all(map(math.isfinite, facts)):
            return False
        self.error_squares += facts[0]
        self.engine_squares += facts[1]
        self.reference_squares += facts[2]
        self.max_abs = max(self.max_abs, facts[3])
        self.max_engine = max(self.max_engine, facts[4])
        self.max_reference = max(self.max_reference, facts[5])
        self.mismatched += int(facts[6])
        self._keep_worst(start, error, facts[3], bad if facts[6] else None)
        return True

    def _allowed(self, size: Tensor) -> Tensor:
        return size * (self.tolerance.rtol or 0.0) + (self.tolerance.atol or 0.0)

    def _keep_worst(self, start: int, error: Tensor, largest: float, bad: Tensor | None) -> None:
        if bad is not None:
            error = torch.where(bad, error, -1.0)
            largest = float(error.amax())
        rank = (bad is not None, largest)
        if rank > (self.worst_mismatched, self.worst_error):
            self.worst_mismatched, self.worst_error = rank
            self.worst = start + int(error.argmax())

    def _add_non_finite(self, start: int, reference: Tensor, engine: Tensor) -> Tensor:
        """Judge the elements where a side is not finite; returns a mask of all the others."""
        finite = torch.isfinite(reference) & torch.isfinite(engine)
        nan = torch.isnan(reference) & torch.isnan(engine)
        inf = (reference == engine) & ~finite
        matched = torch.zeros_like(finite)
        if self.tolerance.equal_nan:
            matched |= nan
            self.matched_nan += int(nan.sum())
        if self.tolerance.allow_inf:
            matched |= inf
            self.matched_inf += int(inf.sum())
        wrong = ~finite & ~matched
        count = int(wrong.sum())
        self.non_finite += count
        self.mismatched += count
        if count and self.first_non_finite is None:
            self.first_non_finite = start + int(wrong.to(torch.uint8).argmax())
        return finite

    @property
    def rms(self) -> float:
        """Root mean square error."""
        return math.sqrt(self.error_squares / self.elements) if self.elements else 0.0

    @property
    def relative_rms(self) -> float:
        """RMS error over the larger RMS of the two sides: 1 when one of them is all zeros."""
        scale = max(self.engine_squares, self.reference_squares)
        return math.sqrt(self.error_squares / scale) if scale else 0.0
