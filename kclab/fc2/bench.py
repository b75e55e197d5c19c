"""One boundary on one backend, ready to be measured: operands, control, accepted baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.errors import NothingMatched
from kclab.fc2.backends import Backend, Candidate, Gemm, Refused
from kclab.fc2.baseline import Baseline, accepted_baseline
from kclab.fc2.operands import Operands, exact_rows, ones, poison_padding
from kclab.fc2.parity import output_sha256
from kclab.fc2.problem import BASELINE_WORKSPACE, GEMM, Precision, Problem
from kclab.fc2.producer import produce
from kclab.fc2.timing import Arm

if TYPE_CHECKING:
    from torch import Tensor

BASELINE_ARM, CONTROL_ARM, CANDIDATE_ARM = "A", "B0", "B"
REFERENCE_ROWS = 64
"""Logical rows that the own float64 reference is computed for."""

_COMMON = {
    "layout": "row-major [M, K] @ [N, K]^T -> bfloat16 [M, N]",
    "compute_and_scale": "fp32",
    "bias": None,
    "beta": 0.0,
}
DESCRIPTORS = {
    Precision.BF16: {**_COMMON, "scalars": "host"},
    Precision.FP8: {**_COMMON, "scalars": "host", "scale_mode": "SCALAR_32F"},
    Precision.NVFP4: {**_COMMON, "scalars": "device", "scale_mode": "VEC16_UE4M3"},
}
"""How the GEMM is described to cuBLASLt."""


@dataclass(slots=True)
class Control:
    """B0: the heuristic's first choice at the baseline's workspace, through our runner."""

    candidate: Candidate
    prepared: Any


class Bench:
    """Everything that a search measures with. Close it."""

    def __init__(
        self,
        backend: Backend,
        problem: Problem,
        operands: Operands,
        workspace_bytes: int,
        *,
        gate_up: Tensor | None = None,
        cold: bool = True,
    ):
        backend.require(problem)
        self.backend = backend
        self.problem = problem
        self.gemm: Gemm = backend.open(problem, operands, workspace_bytes)
        self.gate_up = None if gate_up is None else gate_up.to(backend.device)
        self.clock = backend.clock(cold=cold)
        self.control = self._control()
        self.baseline: Baseline = accepted_baseline(backend, problem, self.gemm)
        self.expected = self.logical(self.baseline.call(self.gemm.operands)).clone()
        """A's output over logical rows: what `exact` is judged against."""
        self.expected_sha256 = output_sha256(self.expected)
        self._ones: Operands | None = None
        self._poisoned: Operands | None = None
        self._reference: tuple[Tensor, Tensor] | None = None

    def _control(self) -> Control:
        found = self.gemm.enumerate(BASELINE_WORKSPACE, 1)
        if not found:
            raise NothingMatched(
                f"the heuristic has no algorithm for {self.problem.shape} {self.problem.numerics} "
                "within 32 MiB; there is nothing to compare with."
            )
        return Control(found[0], self.gemm.prepare(found[0].config))

    def baseline_metadata(self) -> dict[str, Any]:
        """What arm A is: its call, descriptors, what it launches, and its output's sha256."""
        operands = self.gemm.operands
        launch = self.backend.launch_of(lambda: self.baseline.call(operands))
        control = self.gemm.fingerprint(self.control.prepared)
        found: dict[str, Any] = {
            "path": self.baseline.name,
            "descriptors": DESCRIPTORS[self.problem.precision],
            "output_sha256": self.expected_sha256,
            "rank_0": {"config": self.control.candidate.config.text, "kernel": control.kernel},
        }
        if launch is None:
            return {**found, "note": "what the baseline launches cannot be read here"}
        return {
            **found,
            "kernels": launch.kernel.split("|"),
            "grid": launch.grid,
            "launches_rank_0": launch.sha256 == control.sha256,
        }

    def logical(self, output: Tensor) -> Tensor:
        """The rows that count."""
        return output[: self.problem.m]

    def output_of(self, prepared: Any, operands: Operands | None = None) -> Tensor:
        """Logical rows of one run over a poisoned output; overwritten by the next. Raises Refused.

        The poison (NaN) shows an algorithm that leaves elements unwritten.
        """
        self.gemm.output.fill_(float("nan"))
        self.gemm.run(prepared, operands)
        self.gemm.synchronize()
        return self.logical(self.gemm.output)

    @property
    def ones(self) -> Operands:
        """Operands that are 1 everywhere, made on first use."""
        if self._ones is None:
            self._ones = ones(self.problem, self.gemm.operands)
        return self._ones

    @property
    def poisoned(self) -> Operands | None:
        """Operands with NaN in the padding rows; None where nothing is padded."""
        if self._poisoned is None:
            self._poisoned = poison_padding(self.problem, self.gemm.operands)
        return self._poisoned

    def reference(self) -> tuple[Tensor, Tensor]:
        """(row numbers, their exact product in bf16), made on first use."""
        if self._reference is None:
            count = min(REFERENCE_ROWS, self.problem.m)
            rows = torch.unique(torch.linspace(0, self.problem.m - 1, count).round().long())
            self._reference = rows, exact_rows(self.problem, self.gemm.operands, rows)
        return self._reference

    def arms(self, prepared: dict[str, Any], scope: str = GEMM) -> list[Arm]:
        """Arms by name; BASELINE_ARM is added, scopes differ in whether the producer runs too."""
        makers = {name: self._runner(item) for name, item in prepared.items()}
        makers[BASELINE_ARM] = self.baseline.call
        if scope == GEMM:
            operands = self.gemm.operands
            return [Arm(name, _bound(call, operands)) for name, call in makers.items()]
        return [Arm(name, self._after_producer(call)) for name, call in makers.items()]

    def runner(self, prepared: Any) -> Callable[[], None]:
        """Enqueue one run over the boundary's operands."""
        return lambda: self.gemm.run(prepared)

    def _runner(self, prepared: Any) -> Callable[[Operands], Any]:
        own = self.gemm.operands

        def call(operands: Operands) -> None:
            self.gemm.run(prepared, None if operands is own else operands)

        return call

    def _after_producer(self, call: Callable[[Operands], Any]) -> Callable[[], None]:
        assert self.gate_up is not None
        gate_up, weights = self.gate_up, self.gemm.operands

        def launch() -> None:
            call(produce(self.problem, gate_up, weights))

        return launch

    def close(self) -> None:
        """Free what the backend holds."""
        self.gemm.close()


def _bound(call: Callable[[Operands], Any], operands: Operands) -> Callable[[], None]:
    def launch() -> None:
        call(operands)

    return launch


__all__ = ["BASELINE_ARM", "CANDIDATE_ARM", "CONTROL_ARM", "Bench", "Control", "Refused"]
