"""What a Ray worker runs of a sweep: the same sweep as anywhere, into a store of its own.

The driver gets that store's rows and new blobs, and merges them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kclab.core.ray_worker import own_facts
from kclab.db.connection import writing
from kclab.db.store import Store
from kclab.fc2.backends import Backend
from kclab.fc2.boundary import Boundary, BoundaryRow, make_again, with_tensors
from kclab.fc2.lab import Subject, no_watch
from kclab.fc2.sweeps import Ask, sweep_one
from kclab.replay.loading import TensorLoader
from kclab.replay.ray_files import NodeFiles
from kclab.replay.task import StoredTensor


@dataclass(frozen=True, slots=True)
class Errand:
    """One boundary to sweep."""

    subject: Subject
    ask: Ask
    argv: Sequence[str]
    """The driver's, for the run's row."""
    row: BoundaryRow | None = None
    """A stored boundary; None for a synthetic one that is made where it is swept."""
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Its operands and surroundings; none where a recipe is kept."""


class SweepHost:
    """Sweeps one boundary for the driver."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kclab-sweep-"))
        self.files = NodeFiles(self.folder / "fetched")

    def greet(self) -> dict[str, Any]:
        """What this worker is."""
        return own_facts()

    def close(self) -> None:
        """Remove what it keeps on disk."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def work(
        self, errand: Errand, states: Mapping[str, Any], blobs: Mapping[str, bytes]
    ) -> dict[str, Any]:
        """Sweep. Returns the paths that are `lacking`, or `said` (what went wrong), its exit
        `code`, the `database` file's bytes, and the `blobs` that were made here."""
        self.files.receive(blobs, states)
        places = {
            name: self.files.place(stored, states.get(stored.path))
            for name, stored in errand.tensors.items()
        }
        lacking = [errand.tensors[name].path for name, place in places.items() if place is None]
        if lacking:
            return {"lacking": lacking}
        tensors = {
            name: replace(stored, path=places[name] or stored.path)
            for name, stored in errand.tensors.items()
        }
        sys.argv = list(errand.argv)
        store = Store.at(self.folder / "kclab.db")
        with _turn(errand.subject.backend):
            said, code = sweep_one(store, _subject(errand, tensors), errand.ask, no_watch)
        return {"lacking": [], "said": said, "code": code, **_contents(store, errand)}


def _subject(errand: Errand, tensors: Mapping[str, StoredTensor]) -> Subject:
    row = errand.row
    if row is None:
        return errand.subject

    def make(backend: Backend) -> Boundary:
        if not tensors:
            return make_again(row, backend.device)
        loader = TensorLoader(backend.device)
        return with_tensors(row, {name: loader.load(stored) for name, stored in tensors.items()})

    return replace(errand.subject, make=make)


@contextmanager
def _turn(backend: str) -> Iterator[None]:
    """On a CPU, workers of one machine take turns: two sweeps at once would spoil both.

    With GPUs each worker has its own.
    """
    if backend != "cpu":
        yield
        return
    path = Path(tempfile.gettempdir()) / "kclab-sweeps-in-turn.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _contents(store: Store, errand: Errand) -> dict[str, Any]:
    """The store's file, and the blobs in it that the driver does not have."""
    if not store.database.exists():
        return {"database": None, "blobs": {}}
    known = {stored.sha256 for stored in errand.tensors.values()}
    with closing(store.write()) as connection:
        if errand.row is not None:
            # The driver's name of the workload, which for one out of an engine may differ.
            with writing(connection) as tx:
                tx.execute("UPDATE workload SET uuid = ?", (errand.row.workload_uuid,))
        digests = [row[0] for row in connection.execute("SELECT sha256 FROM blob WHERE present")]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    made = {sha256: store.blobs.read(sha256) for sha256 in digests if sha256 not in known}
    blobs = {sha256: (b.dtype, b.shape, bytes(b.data)) for sha256, b in made.items()}
    return {"database": store.database.read_bytes(), "blobs": blobs}
