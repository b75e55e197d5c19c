"""FC2 boundaries out of a running MiniMax-H3: what each wanted block's FC2 is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.errors import CheckFailed
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.fc2.backends import Backend, load_backend
from kclab.fc2.boundary import Boundary
from kclab.fc2.boundary_insertion import store_boundary
from kclab.fc2.h3_fc2 import AcceptedFc2, Weights
from kclab.fc2.h3_options import H3Options
from kclab.fc2.operands import Operands
from kclab.fc2.problem import Problem
from kclab.fc2.producer_check import check_producer
from kclab.h3.captured import read_input
from kclab.h3.feed_forward import fc2_of, replaced
from kclab.h3.model import Conditioning, Denoiser, run_block
from kclab.h3.sampler import sample

if TYPE_CHECKING:
    from torch import Tensor, nn

Progress = Callable[[str, int, int], None]
"""(what, done, in all)."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """For callers that do not look."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks of a traversal."""

    blocks: tuple[int, ...]
    """Those whose boundaries are taken."""
    kept: Container[int]
    """Those that stay in memory afterwards."""


@dataclass(slots=True)
class Traversal:
    """A model that has run to the wanted step, and what was seen there."""

    model: Denoiser
    problem: Problem
    weights: Weights
    accepted: AcceptedFc2
    conditioning: Conditioning
    boundaries: dict[int, Boundary] = field(default_factory=dict)
    """By block."""


class Recorder:
    """Runs blocks with the accepted FC2, and keeps the wanted ones' boundaries in one step."""

    def __init__(
        self,
        problem: Problem,
        accepted: AcceptedFc2,
        wanted: Collection[int],
        step: int,
        layers: int,
        progress: Progress,
    ):
        self._problem, self._accepted = problem, accepted
        self._wanted, self._step, self._progress = wanted, step, progress
        self._layers = layers
        self._steps = 0
        self.boundaries: dict[int, Boundary] = {}
        self.conditioning: Conditioning | None = None

    def run(
        self, index: int, block: nn.Module, hidden: Tensor, conditioning: Conditioning
    ) -> Tensor:
        """One block."""
        self._steps += index == 0
        self._progress(f"step {self._steps} of the model, block", index, self._layers)
        if self._steps != self._step or index not in self._wanted:
            return self._plain(index, block, hidden, conditioning)
        self.conditioning = conditioning
        return self._recorded(index, block, hidden, conditioning)

    def _plain(
        self, index: int, block: nn.Module, hidden: Tensor, conditioning: Conditioning
    ) -> Tensor:
        fc2 = fc2_of(block)
        with replaced(fc2, self._accepted.method(fc2)):
            return run_block(index, block, hidden, conditioning)

    def _recorded(
        self, index: int, block: nn.Module, hidden: Tensor, conditioning: Conditioning
    ) -> Tensor:
        fc2, seen = fc2_of(block), list[tuple["Tensor", Operands]]()
        before = hidden.clone()
        method = self._accepted.method(fc2, lambda *pair: seen.append(pair))
        with replaced(fc2, method):
            after = run_block(index, block, hidden, conditioning)
        if seen:
            gate_up, operands = seen[-1]
            error = check_producer(self._problem, gate_up, operands)
            self.boundaries[index] = Boundary(
                self._problem, operands, gate_up, before, after.clone(), block=index
            )
            self.boundaries[index].recipe = {"producer_error": round(error, 6)}
        return after


def traverse(
    options: H3Options, backend: Backend, wanted: Wanted, progress: Progress = no_progress
) -> Traversal:
    """Run a model to the wanted sampler step and take the wanted blocks' boundaries there.

    The FC2 of every block runs as users run it in the wanted precision. Raises CheckFailed where a
    boundary is missing or its producer is wrong, EnvironmentLacking where the dtype cannot run.
    """
    progress("making the model", 0, 1)
    model, origin = options.load(backend.device, wanted.kept)
    captured = options.input and read_input(options.input, model.sizes, backend.device)
    tokens = len(captured.hidden) if captured else options.request.layout.tokens
    sizes, precision = model.sizes, options.precision
    problem = Problem(precision, tokens, sizes.hidden, sizes.ffn, options.fast_accumulation)
    weights = Weights(precision)
    accepted = AcceptedFc2(backend, problem, weights)
    step = 1 if captured else options.request.sampler_step
    recorder = Recorder(problem, accepted, wanted.blocks, step, sizes.layers, progress)
    with torch.inference_mode():
        if captured:
            model.traverse(captured.hidden, model.condition(captured), recorder.run)
        else:
            _denoise_to_step(options, model, recorder)
    _complete(options, wanted, recorder, origin)
    assert recorder.conditioning is not None
    return Traversal(model, problem, weights, accepted, recorder.conditioning, recorder.boundaries)


def _denoise_to_step(options: H3Options, model: Denoiser, recorder: Recorder) -> None:
    request = options.request
    sigmas = request.sigmas
    noise, text = request.start(model.sizes, model.device)
    velocity = model.velocity(request.layout, text, recorder.run)
    sample(velocity, noise, sigmas, lambda done, _all: done < request.sampler_step)


def _complete(
    options: H3Options, wanted: Wanted, recorder: Recorder, origin: Mapping[str, Any]
) -> None:
    missing = sorted(set(wanted.blocks) - set(recorder.boundaries))
    if missing:
        raise CheckFailed(f"block {missing[0]}: its FC2 did not run, so nothing was captured.")
    start: dict[str, Any] = (
        asdict(options.request) if options.input is None else {"input": options.input.name}
    )
    for boundary in recorder.boundaries.values():
        boundary.source = options.source
        boundary.recipe = {"model": dict(origin), "start": start, **boundary.recipe}


@dataclass(frozen=True, slots=True)
class H3Capture:
    """What a capture stored."""

    run_uuid: str
    problem: Problem
    boundary_ids: Mapping[int, int]
    """By block."""


def capture_h3(
    store: Store,
    options: H3Options,
    backend_name: str,
    *,
    progress: Progress = no_progress,
    params: Mapping[str, Any] | None = None,
) -> H3Capture:
    """Store the FC2 boundaries of a model's wanted blocks as workloads."""
    backend = load_backend(backend_name)
    with run(store, "fc2", params or {}, mode="capture") as active:
        taken = traverse(options, backend, Wanted(options.blocks, ()), progress)
        ids: dict[int, int] = {}
        for done, (block, boundary) in enumerate(sorted(taken.boundaries.items())):
            progress(f"block {block}: storing its boundary", done, len(taken.boundaries))
            ids[block] = store_boundary(store, active.connection, boundary)
        taken.accepted.close()
        problem = taken.problem
        blocks = ", ".join(map(str, ids))
        active.finish_as("passed", f"{problem.shape} {problem.numerics}, blocks {blocks}")
        return H3Capture(active.uuid, problem, ids)
