"""Sweeps on a Ray cluster: a fresh worker a boundary, one a GPU; the driver alone writes rows."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.errors import BlobDamaged, EnvironmentLacking, ExitCode, KclabError
from kclab.core.ray_cluster import cluster, places
from kclab.core.ray_worker import (
    FALSE_STARTS,
    Greeting,
    Staff,
    check,
    name_of,
    never_ready,
    why_lost,
)
from kclab.core.times import now_us
from kclab.dataset.merge import Merge
from kclab.db.connection import connect_read, writing
from kclab.db.rows import BlobRow, add_blobs
from kclab.db.runs import ActiveRun, run
from kclab.fc2.boundary import digests_of, find_boundary
from kclab.fc2.lab import Subject
from kclab.fc2.ray_host import Errand
from kclab.fc2.sweeps import Ask, Swept, swept_of
from kclab.fc2.sweeps import name_of as subject_name
from kclab.replay.ray_files import Shipping, state_of
from kclab.replay.task import StoredTensor

POLL_SECONDS = 0.5
START_SECONDS = 600.0
"""For the first worker: a cluster may have others' work to end, and torch to load."""


@dataclass(slots=True)
class Going:
    """A boundary that a worker has."""

    errand: Errand
    worker: Any
    answer: Any
    """Ray's reference to what is awaited."""
    greeting: Greeting | None = None


def sweeps_on_ray(
    above: ActiveRun, subjects: Sequence[Subject], ask: Ask, address: str
) -> Iterator[Swept]:
    """Sweep every subject on the cluster, in the order they end.

    A subject's backend `auto` is cublaslt where the cluster has GPUs, else cpu. Raises
    EnvironmentLacking where no cluster can be had or a node has another kclab.
    """
    with cluster(address) as ray:
        wanted = {"cublaslt": "cuda", "cpu": "cpu"}.get(subjects[0].backend, "auto")
        gpu, room = places(ray, wanted)
        backend = "cublaslt" if gpu else "cpu"
        errands = [_errand(above, replace(s, backend=backend), ask) for s in subjects]
        sweeps = _Sweeps(above, Staff(ray, gpu, "kclab.fc2.ray_host:SweepHost"), room)
        try:
            yield from sweeps.run(errands)
        finally:
            sweeps.staff.dismiss([going.worker for going in sweeps.under_way])


def _errand(above: ActiveRun, subject: Subject, ask: Ask) -> Errand:
    if subject.boundary is None:
        return Errand(subject, ask, sys.argv)
    row = find_boundary(above.connection, subject.boundary)
    blobs = above.store.blobs
    tensors = {
        name: StoredTensor(str(blobs.path(sha256)), TENSOR_KEY, sha256)
        for name, sha256 in digests_of(above.connection, row).items()
    }
    return Errand(subject, ask, sys.argv, row, tensors)


class _Sweeps:
    """What is waiting, and what is under way."""

    def __init__(self, above: ActiveRun, staff: Staff, room: int) -> None:
        self.above, self.staff, self.room = above, staff, room
        self.under_way: list[Going] = []
        self._shipping = Shipping(staff.ray)
        self._lost: dict[int, str] = {}
        """Where each errand was lost first."""
        self._false_starts = 0
        self._since = time.monotonic()
        """When a worker was last heard of."""

    def run(self, errands: Sequence[Errand]) -> Iterator[Swept]:
        waiting = deque(errands)
        while waiting or self.under_way:
            while waiting and len(self.under_way) < self.room:
                worker = self.staff.hire()
                self.under_way.append(Going(waiting.popleft(), worker, worker.greet.remote()))
            answers = {going.answer: going for going in self.under_way}
            ready, _ = self.staff.ray.wait(list(answers), num_returns=1, timeout=POLL_SECONDS)
            self._complain_of_silence()
            for answer in ready:
                yield from self._go_on(answers[answer], waiting)

    def _complain_of_silence(self) -> None:
        heard = any(going.greeting is not None for going in self.under_way)
        if not heard and time.monotonic() - self._since > START_SECONDS:
            raise EnvironmentLacking(
                f"no Ray worker was ready in {START_SECONDS:g} s; the cluster may be busy with "
                "other work: `ray status` shows it."
            )

    def _go_on(self, going: Going, waiting: deque[Errand]) -> Iterator[Swept]:
        try:
            reply = self.staff.ray.get(going.answer)
        except self.staff.losses as error:
            self._dismiss(going)
            yield from self._lose(going, error, waiting)
            return
        self._since = time.monotonic()
        if going.greeting is None:
            check(reply)
            going.greeting = reply
            self._false_starts = 0
            self._send(going, [])
        elif reply["lacking"]:
            self._send(going, reply["lacking"])
        else:
            self._dismiss(going)
            yield self._keep(going, reply)

    def _send(self, going: Going, lacking: Sequence[str]) -> None:
        paths = [stored.path for stored in going.errand.tensors.values()]
        states = {path: state_of(path) for path in paths}
        blobs = {path: self._shipping.load(path) for path in lacking if path in states}
        # What cannot be read here either is told by the worker, in the usual words.
        states |= {path: None for path, blob in blobs.items() if blob is None}
        given = {path: blob for path, blob in blobs.items() if blob is not None}
        going.answer = going.worker.work.remote(going.errand, states, blobs=given)

    def _dismiss(self, going: Going) -> None:
        self.under_way.remove(going)
        self.staff.dismiss([going.worker])

    def _lose(self, going: Going, error: Exception, waiting: deque[Errand]) -> Iterator[Swept]:
        """A worker is gone: its boundary is swept once more, or given up."""
        where = name_of(going.greeting)
        if going.greeting is None:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise never_ready(error) from error
        elif (before := self._lost.get(id(going.errand))) is not None:
            said = f"its Ray worker was lost twice ({before}; then {where}){why_lost(error)}"
            yield self._failed(going.errand, said, "error", int(ExitCode.CHECK_FAILED))
            return
        else:
            self._lost[id(going.errand)] = where
        waiting.appendleft(going.errand)

    def _keep(self, going: Going, reply: Mapping[str, Any]) -> Swept:
        """Merge what a worker found, in one transaction."""
        said, code = reply["said"], reply["code"]
        if reply["database"] is None:
            return self._failed(going.errand, said or "nothing was swept", "failed", code)
        try:
            _merge(self.above, reply["database"], reply["blobs"])
        except KclabError as error:
            return self._failed(going.errand, str(error), "failed", int(error.exit_code))
        return swept_of(self.above, subject_name(going.errand.subject), said, code)

    def _failed(self, errand: Errand, said: str, status: str, code: int) -> Swept:
        """A run for a boundary that no worker could bring one for."""
        params = errand.ask.params_of(errand.subject)
        with run(self.above.store, "fc2", params, mode="sweep", parent_id=self.above.id) as active:
            active.finish_as(status, said, code or int(ExitCode.CHECK_FAILED))
        return swept_of(self.above, subject_name(errand.subject), said, active.exit_code or 1)


def _merge(above: ActiveRun, database: bytes, blobs: Mapping[str, Any]) -> None:
    batch = above.store.blobs.batch()
    for sha256, (dtype, shape, data) in blobs.items():
        found = batch.add(dtype, shape, data)
        if found != sha256:
            raise BlobDamaged(f"a Ray worker sent {sha256[:12]}… with the content of {found[:12]}…")
    batch.sync()
    with tempfile.TemporaryDirectory(prefix="kclab-merge-") as folder:
        path = Path(folder) / "kclab.db"
        path.write_bytes(database)
        with closing(connect_read(path)) as source, writing(above.connection) as tx:
            at = now_us()
            rows = [
                BlobRow(sha256, dtype, shape, len(data))
                for sha256, (dtype, shape, data) in blobs.items()
            ]
            add_blobs(tx, rows, verified_us=at)
            Merge(
                source, tx, {}, {name: {"added_us": at} for name in ("workload", "definition")}
            ).run()
            tx.executemany(
                "UPDATE run SET parent_id = ? WHERE uuid = ?",
                [(above.id, uuid) for (uuid,) in source.execute("SELECT uuid FROM run")],
            )
