"""What a Ray worker runs: one local worker process, and the files and definitions that it needs.

The process that runs references is a child of the Ray worker, as it is a child of kclab without
Ray: what a reference does to its process is told in the same words, and costs no Ray worker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kclab.core.errors import KclabError
from kclab.core.ray_worker import own_facts
from kclab.replay.file_state import FileState
from kclab.replay.ray_files import NodeFiles, named_files
from kclab.replay.task import Outcome, StoredTensor, Task, decode_task, encode_outcome
from kclab.replay.workers import WorkerPool

SLICE = 0.25
"""Seconds after which a call returns with what fell, whatever is still at work."""


class Host:
    """Judges tasks for the driver; what it takes and gives is bytes, text and numbers."""

    def __init__(self, device: str, timeout: float, threads: int) -> None:
        self.pool = WorkerPool(device, 1, timeout, threads)
        self.files = NodeFiles(self.pool.folder / "fetched")
        self.at_hand: dict[int, Task] = {}
        """Tasks as the driver named them, until their outcome is returned."""

    def greet(self) -> dict[str, Any]:
        """What this worker is and runs on, or the `problem` that keeps it from running."""
        facts = own_facts()
        try:
            while not self.pool.greeting:
                list(self.pool.step(SLICE))
        except KclabError as problem:
            return {**facts, "problem": str(problem).rstrip(".")}
        return {**facts, **self.pool.greeting}

    def close(self) -> None:
        """End the worker process and remove what was fetched."""
        self.pool.__exit__(None, None, None)

    def work(
        self,
        definitions: Mapping[str, str],
        tasks: Sequence[bytes],
        states: Mapping[str, FileState | None],
        blobs: Mapping[str, bytes],
    ) -> dict[str, Any]:
        """Take more tasks and judge for a while.

        Returns the `outcomes` that fell, how many tasks are `left`, the paths that are `lacking`
        by task, and a `problem` after which this worker is of no use.
        """
        for sha256, text in definitions.items():
            (self.pool.folder / f"{sha256}.json").write_text(text, encoding="utf-8")
        self.files.tidy(path for task in self.at_hand.values() for path in named_files(task))
        outcomes: list[Outcome] = []
        lacking: dict[int, list[str]] = {}
        try:
            self.files.receive(blobs, states)
            for task in map(decode_task, tasks):
                self._take(task, states, lacking)
            self._judge(outcomes)
        except OSError as error:
            return _reply(outcomes, problem=f"fetched blobs cannot be kept: {error.strerror}")
        except KclabError as error:
            return _reply(outcomes, problem=str(error).rstrip("."))
        return _reply(outcomes, len(self.at_hand), lacking)

    def _take(
        self,
        task: Task,
        states: Mapping[str, FileState | None],
        lacking: dict[int, list[str]],
    ) -> None:
        """Give a task to the process, or say which of its files it lacks."""
        named = named_files(task)
        places = {path: self.files.place(named[path], states.get(path)) for path in named}
        missing = [path for path, place in places.items() if place is None]
        if missing:
            lacking[task.id] = missing
            return
        self.at_hand[task.id] = task
        self.pool.add([_placed(task, places)])

    def _judge(self, outcomes: list[Outcome]) -> None:
        until = time.monotonic() + SLICE
        while self.at_hand and (left := until - time.monotonic()) > 0:
            for outcome in self.pool.step(left):
                task = self.at_hand.pop(outcome.id)
                outcomes.append(self._told(outcome, task))

    def _told(self, outcome: Outcome, task: Task) -> Outcome:
        """The outcome with the driver's names for files that were fetched."""
        reason = outcome.reason or ""
        for path in named_files(task) if str(self.files.folder) in reason else ():
            reason = reason.replace(str(self.files.place_of(path)), path)
        return replace(outcome, reason=reason or None)


def _placed(task: Task, places: Mapping[str, str | None]) -> Task:
    def put(value: Any) -> Any:
        if not isinstance(value, StoredTensor):
            return value
        return replace(value, path=places[value.path] or value.path)

    inputs = {name: put(value) for name, value in task.inputs.items()}
    return replace(task, inputs=inputs, outputs={n: put(v) for n, v in task.outputs.items()})


def _reply(
    outcomes: Sequence[Outcome],
    left: int = 0,
    lacking: Mapping[int, Sequence[str]] | None = None,
    problem: str | None = None,
) -> dict[str, Any]:
    return {
        "outcomes": [encode_outcome(outcome, retired=False) for outcome in outcomes],
        "left": left,
        "lacking": dict(lacking or {}),
        "problem": problem,
    }
