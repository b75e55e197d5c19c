"""The recorder: copies a call's tensors on the engine's thread, and hands them to the writer.

`wants` is the cheap question, `begin` copies the inputs before the operator can overwrite them,
`finish` copies the outputs. Everything slower (hashing, files, rows) happens on the writer's
thread. An error is counted and never reaches the engine, unless the plan is strict.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from torch import Tensor

from kclab.capture.call import Call, Pending
from kclab.capture.checksum import KnownTensors
from kclab.capture.control import ControlFolder
from kclab.capture.copies import Copies, Refused
from kclab.capture.coverage import COPYING, DUPLICATE, SEEN, SELECTED, WATCHING, Coverage
from kclab.capture.entries import ErrorEntry
from kclab.capture.facts import call_device, call_facts, in_graph_capture
from kclab.capture.limits import LimitReached, Limits
from kclab.capture.plan import CapturePlan
from kclab.capture.worker import Worker
from kclab.capture.writer import Record, Rows
from kclab.core.errors import KclabError
from kclab.core.times import now_us
from kclab.db.queries.coverage import OWN_TIME

ERRORS_KEPT = 20
"""Tracebacks a process stores; all errors are counted."""


class Recorder:
    """One process's recorder. Safe on any thread, and across `os.fork`."""

    def __init__(self, plan: CapturePlan):
        self.plan = plan
        self._control = ControlFolder(plan.control)
        self._known = KnownTensors()
        self._selected = lru_cache(maxsize=4096)(self._is_selected)
        self._engine: str | None = None
        self._reset()

    def _reset(self) -> None:
        """State that belongs to one process; a fork's child starts afresh."""
        self._lock = threading.Lock()
        self._keys: set[tuple[Any, ...]] = set()
        self._coverage = Coverage()
        self._limits = Limits(self.plan, self._control)
        self._worker = Worker(self.plan, self._control, self._known, self._coverage)
        self._copies = Copies(self.plan, self._limits, self._worker, self._known)
        self._errors = 0
        self._closed = False

    def after_fork(self) -> None:
        """Call in a fork's child: the parent's thread, queue and locks are not there."""
        self._known = self._known.copy()
        self._reset()

    # What the tap asks

    def wants(
        self,
        definition_name: str,
        *,
        request_id: str,
        step: int,
        variant: str | None = None,
        module_path: str | None = None,
        axes: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether to capture this call; counts it as seen, and why not when it is not wanted."""
        if self._closed or not self._selected(definition_name):
            return False
        self.count(definition_name, SEEN)
        reason = self._unwanted(definition_name, request_id, step, variant, module_path, axes)
        if reason is None:
            return True
        if reason:
            self.count(definition_name, reason)
        return False

    def _unwanted(
        self,
        definition: str,
        request_id: str,
        step: int,
        variant: str | None,
        module_path: str | None,
        axes: Mapping[str, int] | None,
    ) -> str | None:
        if self.plan.steps is not None and step not in self.plan.steps:
            return "step not selected"
        if self._key(definition, request_id, step, variant, module_path) in self._keys:
            return DUPLICATE
        return self._limits.full(definition, axes)

    def _is_selected(self, definition: str) -> bool:
        globs = self.plan.definitions
        return not globs or any(fnmatchcase(definition, glob) for glob in globs)

    def _key(
        self,
        definition: str,
        request_id: str,
        step: int,
        variant: str | None,
        module_path: str | None,
    ) -> tuple[Any, ...]:
        site = module_path if self.plan.per == "site" else None
        return definition, request_id, step, variant, site

    def _key_of(self, call: Call) -> tuple[Any, ...]:
        return self._key(
            call.definition.name, call.request_id, call.step, call.variant, call.module_path
        )

    def count(self, what: str, outcome: str, n: int = 1) -> None:
        """Count calls that were seen, or skipped for a reason."""
        self._coverage.count(what, outcome, n)

    def step(self) -> AbstractContextManager[None]:
        """A selected step runs inside: what it hands over is stored afterwards, within limits."""
        return self._worker.backlog.step()

    def spent(self, copying_us: int, watching_us: int) -> None:
        """Count what a step cost the engine's thread: the receipts' stalls, and all else."""
        self.count(OWN_TIME, COPYING, copying_us)
        self.count(OWN_TIME, WATCHING, watching_us)

    # Capturing one call

    def begin(self, call: Call) -> Pending | None:
        """Check a call's inputs and copy them, before the operator runs.

        None when it is not captured; the reason is counted, nothing is written.
        """
        started = time.perf_counter_ns()
        self._worker.start(self._engine)
        key = self._key_of(call)
        with self._lock:
            if key in self._keys:
                self.count(call.definition.name, DUPLICATE)
                return None
            self._keys.add(key)
        self.count(call.definition.name, SELECTED)
        try:
            pending = self._begin(call)
        except Exception as error:  # whatever it is, the engine goes on; it is counted
            with self._lock:
                self._keys.discard(key)
            self._report(call, error)
            return None
        pending.stall_us = (time.perf_counter_ns() - started) // 1000
        return pending

    def _begin(self, call: Call) -> Pending:
        if not self._control.path.is_dir():
            raise Refused("the run has ended")
        inputs = dict(call.inputs)
        if in_graph_capture(inputs):
            raise Refused("inside a CUDA graph capture")
        axes = call.definition.check_inputs(call_facts(inputs))
        claim = self._limits.claim(call.definition, axes)
        pending = Pending(
            call=call,
            axes=axes,
            inputs={},
            strides={n: list(v.stride()) for n, v in inputs.items() if isinstance(v, Tensor)},
            device=call_device(inputs),
            captured_us=now_us(),
            reserved=0,
            claim=claim,
        )
        try:
            pending.inputs = self._copies.of_inputs(pending)
        except BaseException:
            self._release(pending)
            raise
        return pending

    def finish(self, pending: Pending, outputs: Mapping[str, Tensor]) -> None:
        """Check and copy a call's outputs, after the operator ran, and queue it for the writer."""
        started = time.perf_counter_ns()
        try:
            record = self._record(pending, outputs)
        except Exception as error:  # as above
            self.abandon(pending)
            self._report(pending.call, error)
            return
        pending.stall_us += (time.perf_counter_ns() - started) // 1000
        self._worker.hand_over(record)

    def _record(self, pending: Pending, outputs: Mapping[str, Tensor]) -> Record:
        definition = pending.call.definition
        definition.check_outputs(call_facts(outputs), pending.axes)
        return Record(
            pending=pending,
            outputs=self._copies.of_outputs(pending, outputs),
            output_strides={name: list(value.stride()) for name, value in outputs.items()},
        )

    def abandon(self, pending: Pending, reason: str | None = None) -> None:
        """Forget a call that was begun: its operator raised, or its outputs are not right."""
        with self._lock:
            self._keys.discard(self._key_of(pending.call))
        self._release(pending)
        if reason is not None:
            self.count(pending.call.definition.name, reason)

    def _release(self, pending: Pending) -> None:
        self._copies.release(pending)
        if pending.claim is not None:
            self._control.release(pending.claim)
            pending.claim = None

    def _report(self, call: Call, error: Exception) -> None:
        name = call.definition.name
        if isinstance(error, KclabError):
            self.count(name, str(error).removeprefix(f"{name}: ").rstrip("."))
            if self.plan.strict and not isinstance(error, Refused | LimitReached):
                raise error
        else:
            self.failed(name, error)

    def failed(self, what: str, error: Exception) -> None:
        """Count an error of capture itself and keep its traceback; raises it under `strict`."""
        self.count(what, f"error: {type(error).__name__}: {error}")
        with self._lock:
            self._errors += 1
            keep = self._errors <= ERRORS_KEPT
        if keep:
            text = "".join(traceback.format_exception(error))
            entry = ErrorEntry(type(error).__name__, str(error), text, {"call": what})
            self._worker.backlog.put(Rows([entry]), 0)
        if self.plan.strict:
            raise error

    # The process's life

    def acknowledge(self, engine: str | None = None) -> None:
        """Say that this process is armed; every process does, before it captures anything."""
        self._engine = engine
        self._worker.start(engine)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything captured is stored, and confirm it.

        False after `timeout_s` seconds in which the writer has got nothing done.
        """
        return self._worker.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Drain and end the writer: the process is about to exit."""
        if self._closed:
            return True
        self._closed = True
        return self._worker.close(timeout_s)
