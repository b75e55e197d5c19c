"""This process as a worker of the run: acknowledged, writing, and drained at the end."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import torch

from kclab.capture.backlog import Backlog
from kclab.capture.checksum import KnownTensors
from kclab.capture.control import ControlFolder, ProgressFile, process_key
from kclab.capture.coverage import Coverage
from kclab.capture.description import describe
from kclab.capture.device_room import DeviceRoom
from kclab.capture.entries import WorkerEntry
from kclab.capture.plan import CapturePlan
from kclab.capture.receipt import process_rank
from kclab.capture.writer import Item, Record, Rows, Writer
from kclab.core.environment import environment_facts
from kclab.core.times import now_us


class Worker:
    """One process's writer and its words to the parent; starts when first needed."""

    def __init__(
        self, plan: CapturePlan, control: ControlFolder, known: KnownTensors, coverage: Coverage
    ):
        self.backlog: Backlog[Item] = Backlog(plan.queue_bytes)
        self.room = DeviceRoom()
        self._plan = plan
        self._control = control
        self._known = known
        self._coverage = coverage
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._progress: ProgressFile | None = None
        self._entry: WorkerEntry | None = None
        self._handed = 0

    def start(self, engine: str | None) -> None:
        """Acknowledge the plan and start the writer; a second call changes nothing."""
        if self._writer is not None:
            return
        with self._lock:
            if self._writer is None:
                self._writer = self._started(engine)

    def _started(self, engine: str | None) -> Writer:
        process = process_key()
        self._entry = WorkerEntry(process, now_us(), process_rank(), engine)
        self._progress = self._control.open_progress(process)
        self._handed = self._progress.begun_at.handed
        self._say(self._entry, "armed")
        writer = Writer(
            self._plan,
            process,
            self.backlog,
            self._known,
            self._coverage,
            self._progress,
            lambda record, digests: describe(self._plan, process, record, digests),
            self.room,
        )
        writer.start()
        self.backlog.put(Rows([self._entry]), 0)
        return writer

    def hand_over(self, record: Record) -> None:
        """Number a finished call and queue it for the writer."""
        with self._lock:
            self._handed += 1
            record.occurrence = self._handed
            if self._progress is not None:
                self._progress.handed(self._handed)
            self.backlog.put(record, record.pending.queued)

    def _say(self, entry: WorkerEntry, state: str) -> None:
        facts = {
            "state": state,
            "acknowledged_us": entry.acknowledged_us,
            "rank": entry.rank,
            "engine": entry.engine,
            "environment": _gpu_environment(),
        }
        with contextlib.suppress(FileNotFoundError):  # the run has ended
            self._control.write_worker(entry.process, facts)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything captured is stored, and confirm it.

        False after `timeout_s` seconds in which the writer has got nothing done.
        """
        if self._writer is None or self._entry is None:
            return True
        entry = WorkerEntry(
            self._entry.process,
            self._entry.acknowledged_us,
            process_rank(),
            self._entry.engine,
            drained_us=now_us(),
        )
        confirmation = Rows([entry])
        self.backlog.put(confirmation, 0)
        drained = _wait(confirmation.done, self._writer, timeout_s)
        if drained:
            self._say(entry, "drained")
        return drained

    def close(self, timeout_s: float) -> bool:
        """Drain, then end the writer."""
        drained = self.drain(timeout_s)
        if self._writer is not None:
            self._writer.stop()
            self._writer.join(timeout=5)
        return drained


def _gpu_environment() -> dict[str, Any] | None:
    """This process's environment, once it uses CUDA: asking earlier would break its forks."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types here
    return environment_facts() if started else None


def _wait(done: threading.Event, writer: Writer, timeout_s: float) -> bool:
    """Wait for an event that only a living writer can set, for as long as it gets things done."""
    moved, deadline = writer.moved, time.monotonic() + timeout_s
    while writer.is_alive() and time.monotonic() < deadline:
        if done.wait(min(1.0, timeout_s)):
            return True
        if writer.moved != moved:
            moved, deadline = writer.moved, time.monotonic() + timeout_s
    return done.is_set()
