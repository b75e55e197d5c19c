"""Copying a call's tensors: on their GPU where it has room, else into the queue's host memory."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from kclab.capture.call import Pending
from kclab.capture.checksum import KnownTensors
from kclab.capture.facts import output_bytes
from kclab.capture.limits import LimitReached, Limits
from kclab.capture.plan import CapturePlan
from kclab.capture.snapshot import Snapshot, blank_snapshot, fill, recognise
from kclab.capture.worker import Worker
from kclab.core.definition import python_scalar
from kclab.core.errors import KclabError


class Refused(KclabError):
    """A call that is not captured; its message is the reason that is counted."""


class Copies:
    """Makes room for a call, outputs included, so that copying its outputs never waits."""

    def __init__(self, plan: CapturePlan, limits: Limits, worker: Worker, known: KnownTensors):
        self._plan = plan
        self._limits = limits
        self._worker = worker
        self._known = known

    def of_inputs(self, pending: Pending) -> dict[str, Snapshot | int | float | bool]:
        """Copies of a call's inputs, in the definition's order.

        Raises LimitReached, or Refused where the queue is full and is not waited for.
        """
        given = pending.call.inputs
        names = list(pending.call.definition.inputs)
        scalars = {n: python_scalar(n, v) for n in names if not isinstance(v := given[n], Tensor)}
        tensors = {n: v for n in names if isinstance(v := given[n], Tensor)}
        snapshots = self._on_device(pending, tensors) or self._in_queue(pending, tensors)
        for name, snapshot in snapshots.items():
            fill(snapshot, tensors[name])
        return {n: snapshots[n] if n in snapshots else scalars[n] for n in names}

    def of_outputs(self, pending: Pending, outputs: Mapping[str, Tensor]) -> dict[str, Snapshot]:
        """Copies of a call's outputs, in the definition's order."""
        staged = pending.staged > 0
        blank = {
            n: blank_snapshot(outputs[n], staged=staged) for n in pending.call.definition.outputs
        }
        return {name: fill(snapshot, outputs[name]) for name, snapshot in blank.items()}

    def release(self, pending: Pending) -> None:
        """Give back the room of a call that came to nothing."""
        if pending.reserved:
            self._limits.give_back(pending.reserved)
            self._worker.backlog.give_back(pending.queued)
            self._worker.room.give_back(pending.device, pending.staged)
            pending.reserved = pending.staged = 0

    def _on_device(
        self, pending: Pending, tensors: Mapping[str, Tensor]
    ) -> dict[str, Snapshot] | None:
        """Snapshots to be made on the device; None where it has no room for the whole call.

        All are copied there, and the writer finds out which are stored already: the engine's thread
        never waits. Only an allowance that nears its end makes it look first.
        """
        room = self._worker.room
        snapshots = {name: blank_snapshot(value, staged=True) for name, value in tensors.items()}
        size = _whole_bytes(pending, snapshots)
        if not room.take(pending.device, size):
            return None
        try:
            self._limits.reserve(size, first=_is_first(pending))
        except LimitReached:
            room.give_back(pending.device, size)
            return self._new_on_device(pending, tensors)
        pending.reserved = pending.staged = size
        return snapshots

    def _new_on_device(
        self, pending: Pending, tensors: Mapping[str, Tensor]
    ) -> dict[str, Snapshot] | None:
        known = self._known
        snapshots = {name: recognise(v, known, staged=True) for name, v in tensors.items()}
        size = _whole_bytes(pending, snapshots)
        self._limits.reserve(size, first=_is_first(pending))
        if not self._worker.room.take(pending.device, size):
            self._limits.give_back(size)
            return None
        pending.reserved = pending.staged = size
        return snapshots

    def _in_queue(self, pending: Pending, tensors: Mapping[str, Tensor]) -> dict[str, Snapshot]:
        """Snapshots to be made in host memory, of what is not stored already."""
        snapshots = {name: recognise(value, self._known) for name, value in tensors.items()}
        size = _whole_bytes(pending, snapshots)
        self._limits.reserve(size, first=_is_first(pending))
        if not self._worker.backlog.admit(size, wait=self._plan.on_full == "wait"):
            self._limits.give_back(size)
            raise Refused("the queue is full")
        pending.reserved = size
        return snapshots


def _whole_bytes(pending: Pending, inputs: Mapping[str, Snapshot]) -> int:
    copies = sum(snapshot.bytes_to_copy for snapshot in inputs.values())
    return copies + output_bytes(pending.call.definition, pending.axes)


def _is_first(pending: Pending) -> bool:
    """Whether it holds the first place of its axes."""
    return bool(pending.claim and pending.claim.endswith("-0"))
