"""What must hold before an output that equals the baseline's counts as exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kclab.fc2.bench import Bench
from kclab.fc2.parity import output_class
from kclab.fc2.problem import Precision

if TYPE_CHECKING:
    from torch import Tensor

RUNS = 3

REFERENCE_RMS = {Precision.BF16: 0.01, Precision.FP8: 0.02, Precision.NVFP4: 0.01}
"""Relative RMS distance from the float64 product that a sound algorithm stays within. bf16's
rounding alone is 0.0017; FP8's fast accumulation keeps fewer bits of each partial sum; partial
sums in bf16 (reduction scheme 4) reach 0.004 at eight slices. A dropped tail of 1 % of K is 0.1."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one config."""

    name: str
    passed: bool
    detail: str | None = None
    """What was found, where it did not hold."""


def run_checks(bench: Bench, prepared: Any) -> list[CheckResult]:
    """All checks of a runnable config. Raises Refused where it does not run."""
    classes = [output_class(bench.output_of(prepared)) for _ in range(RUNS)]
    found = [_determinism(classes), _reference(bench, prepared), _ones(bench, prepared)]
    padding = _padding(bench, prepared, classes[0])
    return [*found, padding] if padding else found


def sound(checks: list[CheckResult]) -> bool:
    """Whether the config computes the product at all: everything but determinism holds."""
    return all(check.passed for check in checks if check.name != "determinism")


def _determinism(classes: list[str]) -> CheckResult:
    distinct = len(set(classes))
    detail = f"{RUNS} runs gave {distinct} different outputs" if distinct > 1 else None
    return CheckResult("determinism", distinct == 1, detail)


def _reference(bench: Bench, prepared: Any) -> CheckResult:
    rows, exact = bench.reference()
    found = bench.output_of(prepared)[rows.to(bench.gemm.output.device)].double()
    truth = exact.double()
    error = float((found - truth).norm() / truth.norm().clamp(min=1e-30))
    passed = error <= REFERENCE_RMS[bench.problem.precision]
    detail = f"relative RMS error {error:.2g} over {len(rows)} rows against the float64 product"
    return CheckResult("reference", passed, None if passed else detail)


def _ones(bench: Bench, prepared: Any) -> CheckResult:
    """Split-K has been seen to drop the last K % tile products; counting ones shows it."""
    counted = bench.output_of(prepared, bench.ones)
    k = bench.problem.k
    expected = torch.tensor(float(k), dtype=torch.bfloat16, device=counted.device)
    wrong = counted != expected
    number = int(wrong.sum())
    if not number:
        return CheckResult("ones", True)
    value = float(counted[wrong][0])
    detail = f"{number} of {counted.numel()} elements count {value:g} products instead of {k}"
    return CheckResult("ones", False, detail)


def _padding(bench: Bench, prepared: Any, usual: str) -> CheckResult | None:
    if bench.poisoned is None:
        return None
    output: Tensor = bench.output_of(prepared, bench.poisoned)
    if output_class(output) == usual:
        return CheckResult("padding", True)
    spoiled = int(output.isnan().sum())
    return CheckResult(
        "padding", False, f"NaN in the padding rows reaches {spoiled} elements of logical rows"
    )
