"""The trajectory gate: a candidate in FC2's place in all blocks, over the whole denoising loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from kclab.core.errors import BadUsage, CheckFailed
from kclab.db.store import Store
from kclab.fc2.backends import Backend
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gate_block import DEFAULT_GATE, GateOptions, H3Subject
from kclab.fc2.gate_rows import TRAJECTORY, add_gate, tell_difference
from kclab.fc2.gpu import GLANCE
from kclab.fc2.h3_boundary import Progress, Traversal, Wanted, no_progress, traverse
from kclab.fc2.h3_fc2 import AcceptedFc2, CandidateFc2
from kclab.fc2.h3_options import H3Options
from kclab.fc2.lab import Session, Subject, session, watch_gpu
from kclab.fc2.parity import Parity, compare
from kclab.fc2.problem import Problem
from kclab.h3.blocks import EVERY_BLOCK
from kclab.h3.feed_forward import fc2_of, replaced
from kclab.h3.sampler import Latents, StepDone, sample


@dataclass(frozen=True, slots=True)
class Denoised:
    """One way through the loop."""

    latents: Latents
    steps: int
    seconds: float
    glances: Sequence[Sequence[int | None]] = ()
    """`kclab.fc2.gpu.GLANCE` after each step, the step in the round's place."""


@dataclass(frozen=True, slots=True)
class TrajectoryReport:
    """What a trajectory gate found."""

    run_uuid: str
    problem: Problem
    config: AlgorithmConfig
    steps: int
    """Made, both ways."""
    steps_in_all: int
    baseline_seconds: float
    candidate_seconds: float
    parities: Mapping[str, Parity]
    """video, audio."""

    @property
    def improvement_percent(self) -> float:
        """Time saved by the candidate."""
        return (1 - self.candidate_seconds / self.baseline_seconds) * 100


def trajectory_gate(
    store: Store,
    options: H3Options,
    backend_name: str,
    gate: GateOptions = DEFAULT_GATE,
    *,
    max_seconds: float = float("inf"),
    progress: Progress = no_progress,
    params: Mapping[str, Any] | None = None,
) -> TrajectoryReport:
    """Denoise with the accepted FC2, then with a candidate in all blocks; demand equal bytes.

    The baseline makes as many steps as begin within half of `max_seconds`, at least one; the
    candidate makes as many. Raises CheckFailed, with the rows kept, where an output differs.
    """
    if options.input is not None:
        raise BadUsage("a trajectory starts from noise; captured activations have no next step.")
    model = H3Subject(options, lambda o, backend: _take(o, backend, progress), progress)
    subject = Subject(backend_name, make=model.probe, workspace_bytes=gate.workspace_bytes)
    with torch.inference_mode(), session(store, subject, "trajectory", params or {}) as opened:
        candidate = gate.questions.chooser(gate.candidate)(opened)
        prepared = opened.bench.gemm.prepare(candidate.config)
        taken = model.taken
        swapped = CandidateFc2(opened.bench.gemm, prepared, taken.weights)
        ends = time.monotonic() + max_seconds / 2
        first = _denoise(
            opened, options, taken, taken.accepted, lambda _d, _a: time.monotonic() < ends, progress
        )
        second = _denoise(
            opened, options, taken, swapped, lambda done, _all: done < first.steps, progress
        )
        taken.accepted.close()
        return _judge(opened, options, candidate.config, first, second)


def _take(options: H3Options, backend: Backend, progress: Progress) -> Traversal:
    """All blocks stay in memory: none may be made anew while the loop is timed."""
    wanted = Wanted((options.probe,), EVERY_BLOCK)
    return traverse(options, backend, wanted, progress)


def _denoise(
    opened: Session,
    options: H3Options,
    taken: Traversal,
    fc2: AcceptedFc2 | CandidateFc2,
    goes_on: StepDone,
    progress: Progress,
) -> Denoised:
    """The whole loop with one FC2 in all blocks."""
    request, model = options.request, taken.model
    noise, text = request.start(model.sizes, model.device)
    velocity = model.velocity(request.layout, text)
    what = "baseline" if isinstance(fc2, AcceptedFc2) else "candidate"
    gpu, glances = watch_gpu(opened.backend), list[Sequence[int | None]]()

    def done(step: int, steps: int) -> bool:
        opened.bench.gemm.synchronize()
        if (seen := gpu.glance()) is not None:
            glances.append((step, *seen))
        progress(f"{what}, step", step, steps)
        return goes_on(step, steps)

    with ExitStack() as swapped:
        for block in model.blocks:
            place = fc2_of(block)
            swapped.enter_context(replaced(place, fc2.method(place)))
        opened.bench.gemm.synchronize()
        began = time.perf_counter()
        latents, steps = sample(velocity, noise, request.sigmas, done)
        opened.bench.gemm.synchronize()
        return Denoised(latents, steps, time.perf_counter() - began, glances)


def _judge(
    opened: Session,
    options: H3Options,
    config: AlgorithmConfig,
    baseline: Denoised,
    candidate: Denoised,
) -> TrajectoryReport:
    parities = {
        "video": compare(candidate.latents.video, baseline.latents.video),
        "audio": compare(candidate.latents.audio, baseline.latents.audio),
    }
    report = TrajectoryReport(
        opened.active.uuid,
        opened.boundary.problem,
        config,
        baseline.steps,
        len(options.request.sigmas) - 1,
        baseline.seconds,
        candidate.seconds,
        parities,
    )
    seen = {"baseline": baseline.glances, "candidate": candidate.glances}
    _keep(opened, options, report, seen if baseline.glances else {})
    if wrong := tell_difference(parities):
        raise CheckFailed(
            f"config {config.text}'s trajectory is not byte-exact after {report.steps} steps: "
            f"{wrong}. Rows are kept."
        )
    text = f"{config.text} exact over {report.steps} steps, {report.improvement_percent:+.1f} %"
    opened.active.finish_as("passed", text)
    return report


def _keep(
    opened: Session, options: H3Options, report: TrajectoryReport, seen: Mapping[str, Any]
) -> None:
    request = options.request
    detail: dict[str, Any] = {
        "steps": report.steps,
        "steps_in_all": report.steps_in_all,
        "resolution": [request.width, request.height],
        "frames": request.layout.frames,
        "seed": request.seed,
        "baseline": opened.bench.baseline.name,
        "baseline_seconds": report.baseline_seconds,
        "candidate_seconds": report.candidate_seconds,
        "improvement_percent": report.improvement_percent,
        "supplied_workspace_bytes": opened.bench.gemm.workspace_bytes,
        **({"conditions": {"fields": GLANCE, **seen}} if seen else {}),
        "replaced": "FC2's method in all blocks; gate, residual and producer are the model's own",
    }
    add_gate(opened, TRAJECTORY, opened.boundary_id, report.config, report.parities, detail)
