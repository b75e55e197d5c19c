"""Workloads judged by the workers of a Ray cluster, one a GPU or one a core; a WorkerPool's twin.

The driver decides what may run, hands tasks out, takes outcomes back and alone writes rows. A
worker that is lost takes at most the tasks it was at work on with it: each of them is tried once
more, alone, so that the one to blame takes no other with it a second time.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any

from kclab.core.definition import Definition
from kclab.core.errors import EnvironmentLacking
from kclab.core.ray_cluster import cluster, places
from kclab.core.ray_worker import FALSE_STARTS, Staff, check, never_ready, why_lost
from kclab.core.times import now_us
from kclab.replay.ray_files import Shipping
from kclab.replay.ray_lane import MOST, Lane
from kclab.replay.task import Outcome, Task, decode_outcome
from kclab.replay.workers import POLL_SECONDS, START_SECONDS


class RayPool:
    """Workers on a cluster. Use it as a context manager: leaving it ends what it started."""

    def __init__(self, address: str, device: str, jobs: int | None, timeout: float) -> None:
        """`device` is `auto`, `cpu` or `cuda`; `timeout` is seconds for a workload.

        `jobs` bounds the workers. Raises EnvironmentLacking where no cluster can be had.
        """
        self.address = address
        self.timeout = timeout
        self.greeting: Mapping[str, Any] = {}
        """What the first worker said: device, torch version, its environment's facts."""
        self._bodies: dict[str, str] = {}
        self._source: Iterator[Task] = iter(())
        self._waiting: deque[Task] = deque()
        self._alone: deque[Task] = deque()
        """Lost once."""
        self._lost: dict[int, str] = {}
        """Where each task was lost first."""
        self._false_starts = 0
        self._lanes: list[Lane] = []
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._ray = opening.enter_context(cluster(address))
            gpu, self.room = places(self._ray, device)
            self._stack = opening.pop_all()
        self.jobs = min(jobs or self.room, self.room)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        how = ("cuda" if gpu else "cpu", timeout, max(1, cores // self.room))
        self._staff = Staff(self._ray, gpu, "kclab.replay.ray_host:Host", how)
        self._shipping = Shipping(self._ray)

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            self._staff.dismiss([lane.actor for lane in self._lanes])
            self._lanes.clear()

    def define(self, definition: Definition) -> str:
        """Make a definition known to all workers; returns the name that tasks give it."""
        if definition.sha256 not in self._bodies:
            self._bodies[definition.sha256] = json.dumps(dict(definition.body))
        return definition.sha256

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """The outcome of every task, in the order they arrive; tasks are taken as needed.

        Raises EnvironmentLacking when workers cannot start, or a node has another kclab.
        """
        self._source = iter(tasks)
        while self._refill() or any(lane.at_hand for lane in self._lanes):
            self._hire()
            self._feed()
            for lane in self._answered():
                yield from self._answer(lane)

    def _refill(self) -> bool:
        """Whether tasks are waiting, with enough of them taken to keep every worker busy."""
        missing = MOST * max(1, len(self._lanes)) - len(self._waiting)
        self._waiting.extend(islice(self._source, max(0, missing)))
        return bool(self._waiting or self._alone)

    def _hire(self) -> None:
        """Have as many workers as there is room and work for."""
        load = len(self._waiting) + len(self._alone) + sum(bool(x.at_hand) for x in self._lanes)
        for _ in range(min(self.jobs, load) - len(self._lanes)):
            self._lanes.append(Lane(self._staff.hire()))

    def _feed(self) -> None:
        for lane in self._lanes:
            tasks = []
            if self._alone and lane.greeting is not None and not lane.at_hand:
                lane.size = 1
                tasks = [self._alone.popleft()]
            elif lane.room:
                tasks = [self._waiting.popleft() for _ in range(min(lane.room, len(self._waiting)))]
            rest = lane.call(tasks, self._bodies, self._shipping)
            self._waiting.extendleft(reversed(rest))

    def _answered(self) -> list[Lane]:
        """Workers whose oldest call has an answer."""
        heads = {lane.calls[0].answer: lane for lane in self._lanes if lane.calls}
        if not heads:
            return []
        ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=POLL_SECONDS)
        if ready:
            ready, _ = self._ray.wait(list(heads), num_returns=len(heads), timeout=0)
        self._complain_of_silence()
        return [heads[answer] for answer in ready]

    def _complain_of_silence(self) -> None:
        if any(lane.greeting is not None for lane in self._lanes):
            return
        if time.monotonic() - min(lane.since for lane in self._lanes) > START_SECONDS:
            raise EnvironmentLacking(
                f"no Ray worker was ready in {START_SECONDS:g} s; the cluster at {self.address} may"
                " be busy with other work: `ray status` shows it."
            )

    def _answer(self, lane: Lane) -> Iterator[Outcome]:
        try:
            reply = self._ray.get(lane.calls[0].answer)
        except self._staff.losses as error:
            yield from self._lose(lane, error)
            return
        lane.calls.popleft()
        if lane.greeting is None:
            self._greet(lane, reply)
            return
        lane.answered(reply)
        for line in reply["outcomes"]:
            message = json.loads(line)
            del message["retired"]
            del lane.at_hand[message["id"]]
            yield decode_outcome(message)
        if reply["problem"]:
            raise EnvironmentLacking(f"Ray {lane.name}: {reply['problem']}.")

    def _greet(self, lane: Lane, greeting: Mapping[str, Any]) -> None:
        check(greeting)
        lane.greeting = greeting
        self._false_starts = 0
        self.greeting = self.greeting or greeting

    def _lose(self, lane: Lane, error: Exception) -> Iterator[Outcome]:
        """A worker is gone: what it may have been at work on is tried once more, or given up."""
        self._lanes.remove(lane)
        self._staff.dismiss([lane.actor])
        if lane.greeting is None:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise never_ready(error) from error
            return
        begun, waiting = lane.under_way()
        self._waiting.extendleft(reversed(waiting))
        for task in begun:
            if task.id in self._lost:
                yield _given_up(task, lane, self._lost[task.id], error)
            else:
                self._lost[task.id] = lane.name
                self._alone.append(task)


def _given_up(task: Task, lane: Lane, before: str, error: Exception) -> Outcome:
    seconds = time.monotonic() - lane.since
    return Outcome(
        id=task.id,
        status="error",
        seconds=seconds,
        started_us=now_us() - int(seconds * 1e6),
        reason=f"the Ray worker judging it was lost twice ({before}; then {lane.name})"
        f"{why_lost(error)}",
        device=(lane.greeting or {}).get("device"),
    )
