"""The embedded backend: real CPU GEMMs over dequantised operands, with real split-K.

Its configs use the same nine numbers: algorithm 1 multiplies whole matrices, 2 blocks of `tile_id`
rows, 3 K slices (`split_k`) summed in fp32 (reduction 2) or in bf16 (reduction 4, which rounds
every partial and so really fails byte parity). `custom_option` is the number of threads, 0 for
torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.environment import environment_facts
from kclab.fc2.backends import Candidate, Check, Launch, Prepared, Refused
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.operands import dequantise
from kclab.fc2.problem import Problem
from kclab.fc2.threads import threads

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.fc2.operands import Operands

WHOLE, BLOCKED, SPLIT = 1, 2, 3
IN_FP32, IN_BF16 = 2, 4
ROW_BLOCKS = (16, 64, 256)
SPLITS = (2, 4, 8)
THREADS = (0, 1)
PARTIAL_BYTES = {IN_FP32: 4, IN_BF16: 2}
FLUSH_BYTES = 8 << 20


class Cpu:
    """The processor."""

    name = "cpu"
    device = "cpu"

    def facts(self) -> dict[str, Any]:
        facts = environment_facts()
        return {"gpu": f"CPU {facts.get('cpu') or facts.get('machine')}", "capability": None}

    def require(self, problem: Problem) -> None:
        """Every dtype works: operands are dequantised first."""

    def open(self, problem: Problem, operands: Operands, workspace_bytes: int) -> CpuGemm:
        return CpuGemm(problem, operands.to("cpu"), workspace_bytes)

    def launch_of(self, call: Callable[[], Any]) -> Launch | None:
        """None: nothing tells what a CPU call runs."""
        return None

    def clock(self, *, cold: bool) -> HostClock:
        return HostClock(FLUSH_BYTES if cold else 0)


class HostClock:
    """Wall-clock time around one call."""

    settles = 0.0

    def __init__(self, flush_bytes: int):
        self.policy = "cold" if flush_bytes else "hot"
        self._flush = torch.zeros(flush_bytes, dtype=torch.uint8)

    def sample(self, launch: Callable[[], None]) -> float:
        self._flush.add_(1)
        started = time.perf_counter()
        launch()
        return (time.perf_counter() - started) * 1e3

    def series(
        self, gemm: Any, prepared: Sequence[Any], order: Sequence[int]
    ) -> list[float | None]:
        return [self._one(gemm, prepared[place]) for place in order]

    def _one(self, gemm: CpuGemm, prepared: Any) -> float | None:
        try:
            return self.sample(lambda: gemm.run(prepared))
        except Refused:
            return None


class CpuGemm:
    """One problem on the processor."""

    def __init__(self, problem: Problem, operands: Operands, workspace_bytes: int):
        self.problem = problem
        self.operands = operands
        self.workspace_bytes = workspace_bytes
        self.output = torch.empty(problem.m_padded, problem.n, dtype=torch.bfloat16)
        self._decoded = dequantise(problem, operands)

    def enumerate(self, budget: int, wanted: int) -> list[Candidate]:
        ranked = [
            AlgorithmConfig(WHOLE),
            AlgorithmConfig(BLOCKED, tile_id=64),
            AlgorithmConfig(SPLIT, split_k=2, reduction_scheme=IN_FP32),
            AlgorithmConfig(SPLIT, split_k=4, reduction_scheme=IN_BF16),
        ]
        fitting = [c for c in ranked if self._reason(c) is None and self._needs(c) <= budget]
        return [
            Candidate(config, self._needs(config), None, "heuristic", budget, rank)
            for rank, config in enumerate(fitting[:wanted])
        ]

    def neighbours(self, config: AlgorithmConfig) -> list[Candidate]:
        def distance(other: AlgorithmConfig) -> int:
            own = (config.split_k, config.reduction_scheme)
            split = (other.split_k, other.reduction_scheme) != own
            pairs = zip(config.key, other.key, strict=True)
            changed = sum(a != b for i, (a, b) in enumerate(pairs) if i not in (3, 4))
            return changed + split

        near = [c for c in self._all() if distance(c) == 1]
        return [Candidate(c, self._needs(c), None, "neighbour") for c in near]

    def space(self) -> Iterator[list[Candidate]]:
        yield [Candidate(c, self._needs(c), None, "space") for c in self._all()]

    def _all(self) -> list[AlgorithmConfig]:
        found = []
        for count in THREADS:
            found.append(AlgorithmConfig(WHOLE, custom_option=count))
            found += [AlgorithmConfig(BLOCKED, rows, custom_option=count) for rows in ROW_BLOCKS]
            found += [
                AlgorithmConfig(SPLIT, 0, 0, slices, scheme, custom_option=count)
                for slices in SPLITS
                for scheme in (IN_FP32, IN_BF16)
            ]
        return [
            c for c in found if self._reason(c) is None and self._needs(c) <= self.workspace_bytes
        ]

    def _needs(self, config: AlgorithmConfig) -> int:
        partial = PARTIAL_BYTES.get(config.reduction_scheme, 0)
        return config.split_k * self.output.numel() * partial

    def _reason(self, config: AlgorithmConfig) -> str | None:
        if config.algorithm_id not in (WHOLE, BLOCKED, SPLIT):
            return f"no CPU algorithm {config.algorithm_id}"
        if (config.algorithm_id == SPLIT) != (config.split_k > 1):
            return "split-K belongs to algorithm 3 and needs at least two slices"
        if (config.split_k > 1) != (config.reduction_scheme in PARTIAL_BYTES):
            return "the reduction scheme does not fit the split-K number"
        if config.split_k > self.problem.k:
            return "more slices than K"
        if (config.algorithm_id == BLOCKED) != (config.tile_id > 0):
            return "row blocks belong to algorithm 2"
        return None

    def reductions(self, algorithm_id: int) -> tuple[int, ...]:
        return (IN_FP32, IN_BF16) if algorithm_id == SPLIT else ()

    def check(self, config: AlgorithmConfig) -> Check:
        reason = self._reason(config)
        return Check(reason is None, None if reason else self._needs(config), None, reason)

    def prepare(self, config: AlgorithmConfig) -> AlgorithmConfig:
        if reason := self._reason(config):
            raise Refused(reason)
        return config

    def fingerprint(self, prepared: AlgorithmConfig) -> Launch:
        names = {WHOLE: "cpu_mm", BLOCKED: f"cpu_mm_rows{prepared.tile_id}"}
        partial = "bf16" if prepared.reduction_scheme == IN_BF16 else "fp32"
        kernel = names.get(prepared.algorithm_id, f"cpu_mm_splitk_{partial}")
        rows = prepared.tile_id or self.problem.m_padded
        grid = (-(-self.problem.m_padded // rows), 1, prepared.split_k)
        block = (prepared.custom_option or torch.get_num_threads(), 1, 1)
        fold = hash((kernel, grid, block))
        return Launch(kernel, grid, block, (0, 0, 0), 0, 1, fold)

    def launches(self, configs: Sequence[AlgorithmConfig]) -> list[Prepared | Refused]:
        return [Prepared(config, self.fingerprint(config)) for config in configs]

    def run(self, prepared: AlgorithmConfig, operands: Operands | None = None) -> None:
        if self._needs(prepared) > self.workspace_bytes:
            raise Refused(f"needs {self._needs(prepared)} bytes of workspace")
        decoded = self._decoded if operands is None else dequantise(self.problem, operands)
        with threads(prepared.custom_option):
            self._multiply(prepared, *decoded)

    def _multiply(
        self, config: AlgorithmConfig, activation: Tensor, weight: Tensor, alpha: float
    ) -> None:
        if config.algorithm_id == SPLIT:
            sums = _split_k(config, activation, weight)
            self.output.copy_(sums.float().mul_(alpha))
            return
        step = config.tile_id or activation.shape[0]
        for begin in range(0, activation.shape[0], step):
            rows = activation[begin : begin + step] @ weight.T
            self.output[begin : begin + step] = rows.mul_(alpha)

    def synchronize(self) -> None:
        """Nothing is pending: the CPU runs at once."""

    def close(self) -> None:
        """Nothing is held."""


def _split_k(config: AlgorithmConfig, activation: Tensor, weight: Tensor) -> Tensor:
    kept = torch.bfloat16 if config.reduction_scheme == IN_BF16 else torch.float32
    edges = [activation.shape[1] * i // config.split_k for i in range(config.split_k + 1)]
    sums: Tensor | None = None
    for begin, end in pairwise(edges):
        part = (activation[:, begin:end] @ weight[:, begin:end].T).to(kept)
        sums = part if sums is None else sums + part
    assert sums is not None
    return sums
