"""The tap: between the engine's operator calls and the recorder.

While a selected step runs, a dispatch mode is on that thread's stack, and on that of threads that
the step starts; otherwise there is none, and calls cost what they cost without kclab.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kclab.capture import context
from kclab.capture.adapters import Adapter, CannotCapture, Handler, Late, Sighting, Uncaptured
from kclab.capture.call import Call, Pending
from kclab.capture.context import Step
from kclab.capture.control import ControlFolder, process_key
from kclab.capture.imports import when_imported
from kclab.capture.mode import StepMode, hidden, out_of_sight, own_time, run_kernel, tap_is_on
from kclab.capture.modules import ModuleNames
from kclab.capture.naming import Definitions
from kclab.capture.plan import CapturePlan
from kclab.capture.recording import Recording
from kclab.capture.roots import Roots
from kclab.capture.threads import carry_steps
from kclab.capture.wrapping import put_wrapper
from kclab.core.catalog import Catalog
from kclab.core.definition import Definition
from kclab.core.errors import EnvironmentLacking

Result = TypeVar("Result")


class Tap:
    """One process's armed capture."""

    def __init__(
        self, plan: CapturePlan, recorder: Recording, adapters: Sequence[Adapter], catalog: Catalog
    ):
        self.plan = plan
        self.recorder = recorder
        self._adapters = tuple(adapters)
        self._definitions = Definitions(plan, catalog)
        roots = (plan.root,) if plan.root else tuple(r for a in adapters for r in a.roots)
        self.roots = Roots(roots, self._run_step) if roots else None
        self._handlers: dict[str, Handler] = {}
        self._undo: list[Callable[[], None]] = []
        self._steps = 0
        """Calls of a root here."""
        self._selected = False
        """Whether one of them was selected, or could not be told."""
        self._program: Step | None = None
        self._program_mode: StepMode | None = None

    def arm(self) -> None:
        """Start seeing steps; the calling thread's whole program is one where no root is named."""
        for adapter in self._adapters:
            self._handlers.update(adapter.handlers)
            adapter.attach(self)
        self._undo.append(carry_steps())
        self._undo.append(when_imported("torch._dynamo", StepMode.leave_out))
        context.set_watcher(self)
        if self.roots is not None:
            self.roots.install()
        elif self.selects(0):
            self._begin_program()

    def disarm(self) -> None:
        """Stop seeing steps and give every function and class back what it had."""
        if self._program is not None:
            self._end_program()
        if self.roots is not None:
            root = self.roots.names[0].rpartition(".")[2]
            # Of a served engine its workers are captured, which are children.
            is_program = multiprocessing.parent_process() is None and not self.plan.served
            if not self._steps and is_program:
                self.count(root, "never called in this process")
            elif not self._selected and self._steps:
                self.recorder.count(root, "no step selected", self._steps)
            self.roots.remove()
        context.set_watcher(None)
        while self._undo:
            self._undo.pop()()

    # what `context` asks

    def selects(self, index: int) -> bool:
        """Whether the plan captures the step with this number."""
        return self.plan.steps is None or index in self.plan.steps

    def watching(self, step: Step) -> StepMode:
        """The mode to be on while a thread runs a selected step."""
        return StepMode(step, self._handlers, self)

    def whole_requests(self) -> bool:
        """Whether a request is a step by itself: true without a root class."""
        return self.roots is None

    # what adapters ask

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of `owner.name` until disarmed; twice is harmless.

        Raises EnvironmentLacking naming the target where this release has none.
        """
        undo = put_wrapper(owner, name, make)
        if undo is not None:
            self._undo.append(undo)

    def when_imported(self, module: str, then: Callable[[Any], None]) -> None:
        """Call `then(module)` once the program has imported it; its errors are the capture's.

        What the module lacks ends the run: it would go on without what it was started for.
        """

        def told(imported: Any) -> None:
            try:
                then(imported)
            except EnvironmentLacking as error:
                ControlFolder(self.plan.control).fail(process_key(), str(error), fatal=True)
                self.recorder.failed(module, error)

        self._undo.append(when_imported(module, told))

    def step(self) -> Step | None:
        """The selected step that runs on this thread, None outside one or in a captured call."""
        step = context.current_step()
        return step if step is not None and step.selected and tap_is_on() else None

    def sight(self, what: str, ask: Callable[[], Sighting | Uncaptured | None]) -> Sighting | None:
        """Ask an adapter about a call; what has no definition and what goes wrong is counted."""
        seen = None
        with self.guarded(what):
            seen = ask()
        if isinstance(seen, Uncaptured):
            self.count(seen.what, seen.reason)
            return None
        return seen

    def around(self, sighting: Sighting, step: Step, run: Callable[[], Result]) -> Result:
        """Run a call, captured if it is wanted; its inner calls are part of it."""
        pending = self.begin(sighting, step)
        try:
            with hidden():
                result = run_kernel(run)
        except BaseException:
            self.abandon(pending)
            raise
        self.finish(pending, lambda: sighting.outputs(result))
        return result

    def begin(self, sighting: Sighting, step: Step) -> Pending | None:
        """Before a call: copy its inputs if it is wanted; None if not."""
        pending = None
        with self.guarded(sighting.family):
            name, definition = self._definitions.of(sighting)
            if definition is None:
                if name is not None:
                    self.count(name, "no definition")
            elif _is_graph_capture(sighting.inputs.values()):
                self.count(definition.name, "graph capture")
            else:
                pending = self._begin(sighting, step, definition)
        return pending

    def finish(self, pending: Pending | None, outputs: Callable[[], Mapping[str, Tensor]]) -> None:
        """After the call: copy its outputs."""
        if pending is not None:
            with self.guarded(pending.call.definition.name):
                self.recorder.finish(pending, outputs())
            if (step := context.current_step()) is not None:
                step.stalled_us += pending.stall_us

    def abandon(self, pending: Pending | None) -> None:
        """Instead of `finish`, for a call that raised."""
        if pending is not None:
            with self.guarded(pending.call.definition.name):
                self.recorder.abandon(pending)

    def count(self, what: str, outcome: str) -> None:
        """Count a call that is not captured."""
        self.recorder.count(what, outcome)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """kclab's own work inside: seen by no mode, its errors counted and not raised."""
        try:
            with own_time(context.current_step()), out_of_sight():
                yield
        except Exception as error:  # whatever capture does wrong, the engine goes on
            self.recorder.failed(what, error)

    def left(self, step: Step) -> None:
        """Count what the step cost, and say so if a compiler hid some of its kernels."""
        own_us, step.own_ns = step.own_ns // 1000, 0
        self.recorder.spent(step.stalled_us, max(0, own_us - step.stalled_us))
        step.stalled_us = 0
        if not step.noted and _compiler_is_in_use():
            step.noted = True
            self.count("torch.compile", "operators that it fuses are not seen")

    # inside

    def _begin(self, sighting: Sighting, step: Step, definition: Definition) -> Pending | None:
        path = self._path(step) if self.plan.per == "site" else None
        wanted = self.recorder.wants(
            definition.name,
            request_id=step.request.id,
            step=step.index,
            variant=sighting.variant,
            module_path=path,
            axes=definition.bind_axes(_shapes(sighting.inputs)),
        )
        if not wanted:
            return None
        try:
            inputs = {n: v.make() if isinstance(v, Late) else v for n, v in sighting.inputs.items()}
        except CannotCapture as error:
            self.count(definition.name, str(error))
            return None
        return self.recorder.begin(
            Call(
                definition=definition,
                inputs=inputs,
                operation=sighting.operation,
                request_id=step.request.id,
                step=step.index,
                module_path=path or self._path(step),
                variant=sighting.variant,
                receipt={**step.request.facts, **sighting.receipt},
                request=step.request.payload,
                request_started_us=step.request.started_us,
            )
        )

    def _path(self, step: Step) -> str | None:
        if step.names is None:
            step.names = ModuleNames(step.root)
        assert isinstance(step.names, ModuleNames)
        return step.names.path()

    def _run_step(
        self,
        root: nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if context.current_step() is not None:
            return call(*args, **kwargs)  # `forward` below `__call__`, or a root inside a root
        self._steps += 1
        request = context.current_request()
        if request is None:
            self.count(type(root).__name__, "no request")
            step = Step(context.Request(""), 0, selected=False)
        else:
            # Not `getattr`, since what a module lacks takes long to say; not `get`, which a
            # scripted module's children lack.
            children = root._modules
            compiled = "_orig_mod" in children
            step = context.new_step(request, children["_orig_mod"] if compiled else root)
        self._selected |= step.selected or request is None
        if not step.selected:
            return context.run_unwatched(step, call, args, kwargs)
        with self.recorder.step(), context.running(step):
            return call(*args, **kwargs)

    def _begin_program(self) -> None:
        request = context.current_request()
        if request is None:
            return
        self._program = request.whole = Step(request, 0)
        self._program_mode = self.watching(self._program)
        context.set_program_step(self._program)
        self._program_mode.__enter__()

    def _end_program(self) -> None:
        assert self._program is not None and self._program_mode is not None
        self._program.closed = True
        context.set_program_step(None)
        self._program_mode.__exit__()
        self._program = self._program_mode = None


def _shapes(inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(v.shape) for name, v in inputs.items() if isinstance(v, Tensor | Late)}


def _compiler_is_in_use() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"]["unique_graphs"])


def _is_graph_capture(inputs: Any) -> bool:
    on_gpu = any(isinstance(v, Tensor) and v.is_cuda for v in inputs)
    return on_gpu and torch.cuda.is_current_stream_capturing()
