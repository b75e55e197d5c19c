"""Trusted references run in worker processes, so that one of them can only fail its own workload.

A worker that crashes, hangs, leaves or loses its GPU is replaced; the workloads that were queued
behind the guilty one go to another worker.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from kclab.core.definition import Definition
from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.core.times import now_us
from kclab.replay.process import WorkerProcess
from kclab.replay.task import Outcome, Task, decode_outcome, with_output

START_SECONDS = 180.0
"""Importing torch from a cold network disk takes minutes at worst."""
IN_FLIGHT = 4
"""Quick tasks that a worker has at hand, so that it never waits for its parent."""
MOST_JOBS = 8
"""Default bound on CPU workers: each holds a whole workload in memory."""
POLL_SECONDS = 0.5


class WorkerPool:
    """Workers on one kind of device. Use it as a context manager: leaving it ends them."""

    def __init__(
        self, device: str, jobs: int | None, timeout: float, threads: int | None = None
    ) -> None:
        """`device` is `auto`, `cpu`, `cuda` or `cuda:<n>`; `timeout` is seconds for a workload.

        `jobs` defaults to one worker a GPU, or one a core, `threads` to a worker's share of the
        cores. The first worker starts at once.
        """
        self.device = _checked_device(device)
        self.jobs = jobs
        self.timeout = timeout
        self.threads = threads
        self.folder = Path(tempfile.mkdtemp(prefix="kclab-replay-"))
        self.workers: list[WorkerProcess] = []
        self.greeting: Mapping[str, Any] = {}
        """What the first worker said: device, torch version, the environment's facts."""
        self._source: Iterator[Task] = iter(())
        self._waiting: deque[Task] = deque()
        self._known: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._early: list[WorkerProcess] = []
        """Started on a GPU that the first worker has yet to confirm."""
        self._likely_gpus = 0 if self.device == "cpu" else likely_gpus()
        self._start(self.device)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in list(self.workers):
            self._stop(worker)
        self._selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def define(self, definition: Definition) -> str:
        """Make a definition known to all workers; returns the name that tasks give it."""
        if definition.sha256 not in self._known:
            text = json.dumps(dict(definition.body))
            (self.folder / f"{definition.sha256}.json").write_text(text, encoding="utf-8")
            self._known.add(definition.sha256)
        return definition.sha256

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """The outcome of every task, in the order they fall; tasks are taken as they are needed.

        Raises EnvironmentLacking when workers cannot start at all.
        """
        self._source = iter(tasks)
        while self.busy():
            yield from self.step(POLL_SECONDS)

    def busy(self) -> bool:
        """Whether a task is waiting or at work; takes more of those that `run` was given."""
        return self._refill() or any(worker.tasks for worker in self.workers)

    def step(self, seconds: float) -> Iterator[Outcome]:
        """Hand out tasks, and give what falls next; waits `seconds` for it at most."""
        self._expand()
        self._feed()
        for worker in self._ready(seconds):
            yield from self._answers(worker)
        for worker in list(self.workers):
            yield from self._overdue(worker)

    def add(self, tasks: Iterable[Task]) -> None:
        """More tasks, for a caller that takes steps."""
        self._waiting.extend(tasks)

    def _start(self, device: str) -> None:
        threads = self.threads or max(1, available_cores() // len(self._devices()))
        worker = WorkerProcess(self.folder, device, threads)
        self.workers.append(worker)
        for source in (worker.socket.fileno(), worker.noise.descriptor):
            self._selector.register(source, selectors.EVENT_READ, worker)

    def _stop(self, worker: WorkerProcess) -> None:
        for source in (worker.socket.fileno(), worker.noise.descriptor):
            if source in self._selector.get_map():
                self._selector.unregister(source)
        self.workers.remove(worker)
        worker.end()

    def _devices(self) -> list[str]:
        """Where workers are to run, one entry each, as far as is known by now."""
        if self.device == "cpu" or self.greeting.get("device") == "cpu":
            return ["cpu"] * (self.jobs or min(available_cores(), MOST_JOBS))
        if ":" in self.device:
            return [self.device] * (self.jobs or 1)
        gpus = self.greeting.get("gpus", 0) if self.greeting else self._likely_gpus
        return [f"cuda:{i % gpus}" for i in range(self.jobs or gpus)] if gpus else [self.device]

    def _refill(self) -> bool:
        """Whether tasks are waiting, with enough of them taken to keep every worker busy."""
        wanted = IN_FLIGHT * len(self._devices())
        self._waiting.extend(islice(self._source, max(0, wanted - len(self._waiting))))
        return bool(self._waiting)

    def _expand(self) -> None:
        """Have as many workers as there are devices and work."""
        certain = bool(self.greeting) or self.device == "cpu"
        if not certain and not self._likely_gpus:
            return  # the first worker has yet to say what there is
        taken = Counter(worker.device for worker in self.workers)
        taken["cuda:0"] += taken["auto"] + taken["cuda"]  # where the first one ends up
        load = len(self._waiting) + sum(bool(worker.tasks) for worker in self.workers)
        missing = Counter(self._devices()) - taken
        for device in list(missing.elements())[: max(0, load - len(self.workers))]:
            self._start(device)
            if not certain:
                self._early.append(self.workers[-1])

    def _feed(self) -> None:
        for worker in self.workers:
            room = IN_FLIGHT if worker.quick else 1
            while self._waiting and worker.greeting is not None and len(worker.tasks) < room:
                worker.send(self._waiting.popleft())

    def _ready(self, seconds: float) -> list[WorkerProcess]:
        """Workers that have something to say or have ended."""
        found: dict[int, WorkerProcess] = {}
        for key, _ in self._selector.select(seconds):
            worker: WorkerProcess = key.data
            if key.fd != worker.noise.descriptor:
                found[id(worker)] = worker
            elif not worker.noise.read():
                self._selector.unregister(key.fd)
        ended = (worker for worker in self.workers if worker.process.poll() is not None)
        found.update((id(worker), worker) for worker in ended)
        return list(found.values())

    def _answers(self, worker: WorkerProcess) -> Iterator[Outcome]:
        messages = worker.receive()
        for message in messages or ():
            if worker.greeting is None:
                self._greet(worker, message)
                continue
            worker.retired = message.pop("retired")
            tail = worker.noise.tail_of(worker.answered().id)
            yield with_output(decode_outcome(message), tail)
        if messages is None or (not messages and worker.process.poll() is not None):
            yield from self._ended(worker)

    def _greet(self, worker: WorkerProcess, greeting: dict[str, Any]) -> None:
        if greeting["problem"]:
            if worker not in self._early:
                raise EnvironmentLacking(f"{greeting['problem']}.")
            self._likely_gpus = 0
            self._stop(worker)
            return
        worker.greeting = greeting
        worker.device = greeting["device"]
        self.greeting = self.greeting or greeting

    def _ended(self, worker: WorkerProcess) -> Iterator[Outcome]:
        """A worker is gone: its first task is to blame, unless it retired in good order."""
        how = worker.how_it_ended()
        if worker.greeting is None:
            said = worker.noise.rest().rpartition("\n")[2] or "it said nothing"
            raise EnvironmentLacking(f"a replay worker {how} before it was ready: {said}")
        if worker.tasks and not worker.retired:
            yield self._blame(worker, f"the reference's process {how}", worker.noise.rest())
        self._replace(worker)

    def _overdue(self, worker: WorkerProcess) -> Iterator[Outcome]:
        silent = time.monotonic() - worker.since
        if worker.greeting is None:
            if silent > START_SECONDS:
                raise EnvironmentLacking(f"a replay worker was not ready in {START_SECONDS:g} s.")
        elif worker.tasks and silent > self.timeout:
            reason = f"timed out after {self.timeout:g} s; --timeout gives a reference more"
            yield self._blame(worker, reason, worker.stack())
            self._replace(worker)

    def _blame(self, worker: WorkerProcess, reason: str, output: str) -> Outcome:
        seconds = time.monotonic() - worker.since
        task = worker.tasks.popleft()
        outcome = Outcome(
            id=task.id,
            status="error",
            seconds=seconds,
            started_us=now_us() - int(seconds * 1e6),
            reason=reason,
            device=worker.device,
        )
        return with_output(outcome, output)

    def _replace(self, worker: WorkerProcess) -> None:
        """Let another worker have what this one was not to blame for; `_expand` starts it."""
        self._waiting.extendleft(reversed(worker.tasks))
        self._stop(worker)


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked_device(device: str) -> str:
    if device == "auto" and not has_gpu_driver():
        return "cpu"
    kind, _, index = device.partition(":")
    if device in ("auto", "cpu", "cuda") or (kind == "cuda" and index.isdigit()):
        return device
    raise BadUsage(f"--device {device}: choose auto, cpu, cuda or cuda:<number>.")


def likely_gpus() -> int:
    """GPUs as the driver's device files and CUDA_VISIBLE_DEVICES have them; 0: nothing is known.

    A guess that lets all workers load torch at once: the first one's torch has the last word.
    """
    files = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(files)
    return min(len(files), len([name for name in visible.split(",") if name.strip()]))


def has_gpu_driver() -> bool:
    """Whether it is worth asking torch for GPUs; asking loads it and takes seconds."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
