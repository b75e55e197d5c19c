"""What another store keeps besides tensors: the images of its requests, the logs of its runs.

Images are verified by their names before any row is merged, like blobs. A log has no digest to hold
it against; it comes as it is, for runs that this store has no log of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from kclab.blob.folder import open_blob
from kclab.blob.kept import KeptName, verify_file
from kclab.core.errors import BlobAbsent, BlobDamaged, DatasetRefused
from kclab.dataset.cases import Refusal
from kclab.dataset.paths import Containment
from kclab.dataset.tree import Tree
from kclab.db.kept_files import mark_elsewhere, named_files
from kclab.db.store import Store

LOG = "server.log"


@dataclass(slots=True)
class FileImport:
    """The files of one store on their way into another."""

    store: Store
    """Where they go."""
    target: sqlite3.Connection
    """Of that store."""
    tree: Tree
    """What they are part of."""
    database: Path
    """Where they come from: beside it."""
    source: sqlite3.Connection
    rereads: bool = False
    """Whether this store's own files are read again, and replaced where they are damaged."""
    places: dict[KeptName, Path] = field(default_factory=dict)
    """Verified files to bring."""
    logs: dict[str, Path] = field(default_factory=dict)
    """Run -> its log there, of runs that have none here."""
    elsewhere: set[KeptName] = field(default_factory=set)
    """Files that only the new rows name, and that do not come."""

    def verify(self) -> list[Refusal]:
        """Read every image that this store lacks; what cannot come, each named."""
        named = sorted(named_files(self.source).items())
        lacking = [(name, elsewhere) for name, elsewhere in named if not self._have(name)]
        self.tree.fetch(str(self.database.parent / str(name)) for name, _ in lacking)
        refused = [found for one in lacking if (found := self._see(*one))]
        self.elsewhere -= named_files(self.target).keys()
        refused += self._find_logs()
        self.tree.fetch(map(str, self.logs.values()))
        return refused

    def _see(self, name: KeptName, elsewhere: bool) -> Refusal | None:
        try:
            path = self._locate(str(name))
            verify_file(path, name.sha256)
        except (BlobAbsent, BlobDamaged, DatasetRefused) as error:
            self.tree.doubt(str(self.database.parent / str(name)))
            self.elsewhere.add(name)
            if elsewhere and isinstance(error, BlobAbsent):
                return None
            unsafe = isinstance(error, DatasetRefused)
            return Refusal(f"{self.database}: image {name}", str(error), unsafe=unsafe)
        self.places[name] = path
        return None

    def _find_logs(self) -> list[Refusal]:
        refused = []
        for (run,) in self.source.execute("SELECT uuid FROM run").fetchall():
            place = f"runs/{run}/{LOG}"
            if not _is_uuid(run) or (self.store.run_folders / run / LOG).exists():
                continue
            try:
                self.logs[run] = self._locate(place)
            except DatasetRefused as error:
                refused.append(Refusal(f"{self.database}: {place}", str(error), unsafe=True))
        return refused

    def place(self) -> None:
        """Put the verified images here, durably; raises BlobDamaged where one changed meanwhile."""
        for name, path in self.places.items():
            if self.store.files.keep(path.read_bytes(), name.suffix) != name:
                raise BlobDamaged(f"{path} changed while it was imported; nothing was imported.")

    def mark(self) -> None:
        """Say in the merged rows which images did not come."""
        if self.elsewhere:
            mark_elsewhere(self.target, self.elsewhere)

    def bring_logs(self) -> None:
        """Copy the logs that are there."""
        for run, path in self.logs.items():
            _copy_log(path, self.store.run_folders / run / LOG)

    def _have(self, name: KeptName) -> bool:
        try:
            if self.rereads:
                self.store.files.verify(name)
            os.utime(self.store.files.path(name))  # young: no gc takes it before its row is there
        except (BlobAbsent, BlobDamaged, FileNotFoundError):
            return False
        return True

    def _locate(self, place: str) -> Path:
        return Path(Containment(self.database.parent).locate(place))


def _is_uuid(run: str) -> bool:
    with contextlib.suppress(ValueError):
        return str(uuid.UUID(run)) == run
    return False


def _copy_log(path: Path, target: Path) -> None:
    try:
        source = open_blob(path)
    except (FileNotFoundError, BlobDamaged):
        return  # a run without a log
    with source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("xb") as file:
                shutil.copyfileobj(source, file)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
