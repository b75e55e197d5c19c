"""The block gate: a candidate in FC2's place inside real blocks, byte for byte and timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.errors import CheckFailed
from kclab.core.stats import compare_arms
from kclab.db.store import Store
from kclab.fc2.backends import Backend
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM
from kclab.fc2.boundary import Boundary
from kclab.fc2.boundary_insertion import store_boundary
from kclab.fc2.characterize import Questions
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gate_rows import BLOCK, GateTiming, add_gate, tell_difference
from kclab.fc2.h3_boundary import Progress, Traversal, Wanted, no_progress, traverse
from kclab.fc2.h3_fc2 import CandidateFc2
from kclab.fc2.h3_options import H3Options
from kclab.fc2.lab import Session, Subject, session, watch_gpu
from kclab.fc2.parity import Parity, compare
from kclab.fc2.problem import BASELINE_WORKSPACE, Problem
from kclab.fc2.timing import Arm, Rounds, warm_up
from kclab.h3.feed_forward import Fc2Method, fc2_of, replaced
from kclab.h3.model import run_block

if TYPE_CHECKING:
    from torch import Tensor


QUESTIONS = Questions()


@dataclass(frozen=True, slots=True)
class GateOptions:
    """How a gate measures."""

    candidate: str | None = None
    """As `--candidate` says it; None takes the stored best, else the heuristic's first."""
    workspace_bytes: int = BASELINE_WORKSPACE
    warmup: int = 2
    rounds: int = 6
    """Mirrored rounds; each holds both ways twice."""
    questions: Questions = QUESTIONS


DEFAULT_GATE = GateOptions()


@dataclass(frozen=True, slots=True)
class BlockResult:
    """One block, both ways."""

    block: int
    parities: Mapping[str, Parity]
    """candidate_vs_baseline, baseline_vs_traversal, candidate_vs_traversal."""
    timing: GateTiming

    @property
    def exact(self) -> bool:
        """Whether all three comparisons are."""
        return all(parity.exact for parity in self.parities.values())


@dataclass(frozen=True, slots=True)
class BlockGateReport:
    """What a block gate found; the rows hold the rest."""

    run_uuid: str
    problem: Problem
    config: AlgorithmConfig
    blocks: Sequence[BlockResult]


class H3Subject:
    """A model that runs once the lab has opened its run, and what it gave."""

    def __init__(
        self,
        options: H3Options,
        take: Callable[[H3Options, Backend], Traversal],
        progress: Progress,
    ):
        self._options, self._take, self._progress = options, take, progress
        self._taken: Traversal | None = None

    def probe(self, backend: Backend) -> Boundary:
        """Run the model; the boundary that candidates are chosen on."""
        self._taken = self._take(self._options, backend)
        self._progress(f"block {self._options.probe}: storing its boundary", 0, 1)
        return self._taken.boundaries[self._options.probe]

    @property
    def taken(self) -> Traversal:
        """The model and its boundaries, after `probe`."""
        assert self._taken is not None
        return self._taken


def block_gate(
    store: Store,
    options: H3Options,
    backend_name: str,
    gate: GateOptions = DEFAULT_GATE,
    *,
    progress: Progress = no_progress,
    params: Mapping[str, Any] | None = None,
) -> BlockGateReport:
    """Swap FC2 inside each wanted block; every output must equal what the model computed.

    Raises CheckFailed, with the rows kept, where one does not.
    """
    model = H3Subject(options, lambda o, backend: _take(o, backend, progress), progress)
    subject = Subject(backend_name, make=model.probe, workspace_bytes=gate.workspace_bytes)
    with torch.inference_mode(), session(store, subject, "block-gate", params or {}) as opened:
        candidate = gate.questions.chooser(gate.candidate)(opened)
        prepared = opened.bench.gemm.prepare(candidate.config)
        taken = model.taken
        swapped = CandidateFc2(opened.bench.gemm, prepared, taken.weights)
        results = []
        for done, index in enumerate(sorted(taken.boundaries)):

            def tell(what: str, at: int = done, block: int = index) -> None:
                progress(f"block {block}: {what}", at, len(taken.boundaries))

            result = _gate_block(opened, taken, swapped, index, gate, tell)
            tell("storing its boundary")
            _keep(store, opened, taken.boundaries[index], candidate.config, result)
            results.append(result)
        taken.accepted.close()
        _conclude(opened, candidate.config, results)
        return BlockGateReport(opened.active.uuid, taken.problem, candidate.config, results)


def _take(options: H3Options, backend: Backend, progress: Progress) -> Traversal:
    return traverse(options, backend, Wanted(options.blocks, options.blocks), progress)


def _gate_block(
    opened: Session,
    taken: Traversal,
    swapped: CandidateFc2,
    index: int,
    gate: GateOptions,
    tell: Callable[[str], None],
) -> BlockResult:
    boundary = taken.boundaries[index]
    block = taken.model.blocks[index]
    fc2 = fc2_of(block)
    assert boundary.block_input is not None and boundary.block_output is not None
    before, traversal = boundary.block_input, boundary.block_output

    def way(method: Fc2Method) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with replaced(fc2, method):
                return run_block(index, block, before, taken.conditioning)

        return call

    baseline, candidate = way(taken.accepted.method(fc2)), way(swapped.method(fc2))
    tell("timing baseline and candidate")
    timing = _time(opened, baseline, candidate, gate)
    tell("comparing outputs")
    return BlockResult(index, compare_ways(candidate(), baseline(), traversal), timing)


def compare_ways(candidate: Tensor, baseline: Tensor, traversal: Tensor) -> dict[str, Parity]:
    """The three comparisons of a gate; equal outputs, hundreds of MB each, are hashed once."""
    known = compare(baseline, traversal)
    return {
        "candidate_vs_baseline": compare(candidate, baseline, known.actual_sha256),
        "baseline_vs_traversal": known,
        "candidate_vs_traversal": compare(candidate, traversal, known.expected_sha256),
    }


def _time(
    opened: Session,
    baseline: Callable[[], Tensor],
    candidate: Callable[[], Tensor],
    gate: GateOptions,
) -> GateTiming:
    arms = [_arm(BASELINE_ARM, baseline), _arm(CANDIDATE_ARM, candidate)]
    warm_up(arms, opened.bench.gemm.synchronize, gate.warmup)
    gpu = watch_gpu(opened.backend)
    rounds = Rounds(opened.backend.clock(cold=False), random.Random(0), gpu=gpu)
    samples = rounds.mirrored(arms, gate.rounds)
    compared = compare_arms(samples, BASELINE_ARM, CANDIDATE_ARM)
    return GateTiming(compared, samples, rounds.glances)


def _arm(name: str, call: Callable[[], Tensor]) -> Arm:
    def launch() -> None:
        call()

    return Arm(name, launch)


def _keep(
    store: Store,
    opened: Session,
    boundary: Boundary,
    config: AlgorithmConfig,
    result: BlockResult,
) -> None:
    boundary_id = (
        opened.boundary_id
        if boundary is opened.boundary
        else store_boundary(store, opened.active.connection, boundary)
    )
    detail = {
        "block": result.block,
        "replaced": "FC2's method alone; gate, residual and producer are the block's own",
        "supplied_workspace_bytes": opened.bench.gemm.workspace_bytes,
        "baseline": opened.bench.baseline.name,
    }
    add_gate(opened, BLOCK, boundary_id, config, result.parities, detail, result.timing)


def _conclude(opened: Session, config: AlgorithmConfig, results: Sequence[BlockResult]) -> None:
    for result in results:
        if wrong := tell_difference(result.parities):
            raise CheckFailed(
                f"config {config.text} is not byte-exact in block {result.block}: {wrong}. "
                "Rows are kept."
            )
    blocks = ", ".join(str(result.block) for result in results)
    opened.active.finish_as("passed", f"{config.text} exact in blocks {blocks}")
