"""One Ray worker as the driver sees it: what it was given, and the calls that are under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclab.core.ray_worker import name_of
from kclab.replay.ray_files import Shipping, named_files, state_of
from kclab.replay.task import Task, encode_task

MOST = 128
"""Tasks of one call: what a call costs is then little beside them, and few wait on one worker."""
SHIPMENT = 256 << 20
"""Bytes of files after which a call takes no further task."""
UNDER_WAY = 2
"""Calls at a time, so that a worker never waits for the driver."""


@dataclass(slots=True)
class Call:
    """A call that was not answered yet."""

    answer: Any
    """Ray's reference to what it will return."""
    tasks: frozenset[int]
    """What it handed over."""


class Lane:
    """A worker and its calls. Calls run in their order; the size of the next follows the last."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.greeting: Mapping[str, Any] | None = None
        self.calls: deque[Call] = deque([Call(actor.greet.remote(), frozenset())])
        self.at_hand: dict[int, Task] = {}
        """Handed over, without an outcome yet."""
        self.size = 1
        """Tasks that keep it busy for about one call."""
        self.since = time.monotonic()
        """When it began something: its start, then its last answer."""
        self._asked: dict[int, Sequence[str]] = {}
        """Files that it lacks, by task."""
        self._defined: set[str] = set()
        self._sent: set[str] = set()
        self._blind = False
        """It has lacked a file, so it is sent the next ones before it asks."""

    @property
    def name(self) -> str:
        """Where it runs."""
        return name_of(self.greeting)

    @property
    def room(self) -> int:
        """How many more tasks to hand over now."""
        if self.greeting is None or len(self.calls) >= UNDER_WAY or self._asked:
            return 0
        if self.size == 1:
            return 0 if self.at_hand else 1
        return self.size if len(self.at_hand) <= self.size else 0

    def call(self, tasks: Sequence[Task], bodies: Mapping[str, str], ship: Shipping) -> list[Task]:
        """Hand over tasks, or ask again for those at hand; returns the tasks it has no room for."""
        again = [self.at_hand[number] for number in self._asked]
        if not tasks and not again and (self.calls or not self.at_hand):
            return []
        if not self.at_hand:
            self.since = time.monotonic()
        parcel, states, blobs, rest = self._pack([*again, *tasks], ship)
        new = {task.definition for task in parcel} - self._defined
        self._defined |= new
        self.at_hand.update((task.id, task) for task in parcel)
        self.calls.append(
            Call(
                self.actor.work.remote(
                    {sha256: bodies[sha256] for sha256 in new},
                    [encode_task(task) for task in parcel],
                    states,
                    blobs=blobs,
                ),
                frozenset(task.id for task in parcel),
            )
        )
        return rest

    def _pack(
        self, tasks: Sequence[Task], ship: Shipping
    ) -> tuple[list[Task], dict[str, Any], dict[str, Any], list[Task]]:
        """Tasks with the looks of their files, the files to send, and tasks that do not fit."""
        states: dict[str, Any] = {}
        blobs: dict[str, Any] = {}
        nbytes = 0
        for place, task in enumerate(tasks):
            if nbytes > SHIPMENT and task.id not in self._asked:
                return list(tasks[:place]), states, blobs, list(tasks[place:])
            states.update((path, state_of(path)) for path in named_files(task))
            for path in self._asked.pop(task.id, self._foreseen(task)):
                found = None if path in blobs else ship.load(path)
                if found is None:
                    states.setdefault(path, None)
                    continue
                blobs[path] = found
                nbytes += (states[path] or (0, 0, 0))[1]
                self._sent.add(path)
        return list(tasks), states, blobs, []

    def _foreseen(self, task: Task) -> list[str]:
        named = named_files(task) if self._blind else ()
        return [path for path in named if path not in self._sent]

    def answered(self, reply: Mapping[str, Any]) -> None:
        """Note how the last call went."""
        self.since = time.monotonic()
        for number, paths in reply["lacking"].items():
            self._blind = True
            self._asked[number] = paths
        judged = len(reply["outcomes"])
        if reply["left"]:
            self.size = max(1, judged)
        elif judged:
            self.size = min(MOST, self.size * 2)

    def under_way(self) -> tuple[list[Task], list[Task]]:
        """What it may have been at work on, and what it had not begun, were it lost now."""
        later = {number for call in list(self.calls)[1:] for number in call.tasks}
        begun = [task for number, task in self.at_hand.items() if number not in later]
        return begun, [self.at_hand[number] for number in later if number in self.at_hand]
