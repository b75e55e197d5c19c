"""Sending an export to a URL: what is there already stays, and it counts once it is whole.

The first object says that an export is on its way (see `manifest`), so that nothing of anybody
else's is written over and no import takes half of it; the last one says what there is. In between
a service's ETag tells which files it has: of those no byte is sent again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kclab.core.errors import BadUsage, CheckFailed
from kclab.dataset.options import Progress
from kclab.dataset.remote.digests import etag, sha256
from kclab.dataset.remote.folder import waiting_folder
from kclab.dataset.remote.manifest import NAME, Manifest
from kclab.dataset.remote.place import HUGGING_FACE, Place, RemoteObject
from kclab.dataset.remote.pool import Transfers
from kclab.db.store import Store

TENSORS = ".safetensors"


@dataclass(slots=True)
class Upload:
    """A folder that an export writes and that is then sent; one use."""

    store: Store
    place: Place
    there: dict[str, RemoteObject]
    """What a broken-off export left."""
    report: Progress
    sent: int = 0
    """Objects that this process sent."""
    sent_bytes: int = 0

    @classmethod
    def to(cls, store: Store, url: str, report: Progress) -> Upload:
        """Look at the place.

        Raises BadUsage where something lies that is no broken-off export, EnvironmentLacking
        without package, credentials or network.
        """
        place = Place(url)
        if place.scheme == HUGGING_FACE:
            raise BadUsage(
                f"{place.url}: hf:// is read, not written; export to a folder, then"
                " `hf upload-large-folder OWNER/NAME FOLDER --repo-type=dataset`."
            )
        there = place.objects()
        found = Manifest.read(place, there)
        if there and (found is None or found.complete):
            raise BadUsage(f"{place.url}: there is something already; name a new or empty folder.")
        return cls(store, place, there, report)

    @property
    def name(self) -> str:
        """What rows and messages call it; holds no secret."""
        return self.place.url

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder beside the store, sent when the block ends."""
        with waiting_folder(self.store, f"export to {self.name}") as waiting:
            root = waiting / "out"
            shutil.rmtree(root, ignore_errors=True)  # what a killed export left
            root.mkdir()
            try:
                yield root
                self._send(root)
            finally:
                shutil.rmtree(root, ignore_errors=True)

    def _send(self, root: Path) -> None:
        files = {path.relative_to(root).as_posix(): path for path in _files(root)}
        self._refuse_strangers(files)
        if NAME not in self.there:
            self.place.put_bytes(Manifest(False, {}).encode(), NAME)
        # An import starts at the rows: they follow what they name.
        for tensors in (True, False):
            self._send_all({n: p for n, p in files.items() if n.endswith(TENSORS) == tensors})
        self._require_all(files)
        digests = {n: None if n.endswith(TENSORS) else sha256(p) for n, p in files.items()}
        sizes = {name: (files[name].stat().st_size, digest) for name, digest in digests.items()}
        self.place.put_bytes(Manifest(True, sizes).encode(), NAME)

    def _refuse_strangers(self, files: dict[str, Path]) -> None:
        strangers = sorted(self.there.keys() - files.keys() - {NAME})
        if strangers:
            raise BadUsage(
                f"{self.name}: holds {strangers[0]}, left by another export; name a new folder, or"
                " empty this one."
            )

    def _send_all(self, files: dict[str, Path]) -> None:
        nbytes = sum(path.stat().st_size for path in files.values())
        transfers = Transfers("sending", len(files), nbytes, self.report)

        def send(item: tuple[str, Path]) -> None:
            name, path = item
            size = path.stat().st_size
            if not _same(self.there.get(name), path, size):
                self.place.put(path, name)
                transfers.count(size)
            transfers.add(size)

        try:
            transfers.run(send, files.items())
        finally:
            self.sent += transfers.counted
            self.sent_bytes += transfers.counted_bytes

    def _require_all(self, files: dict[str, Path]) -> None:
        """Hold what the service has now against what was sent."""
        now = self.place.objects()
        for name, path in files.items():
            size = path.stat().st_size
            found = now[name].size if name in now else 0
            if found != size:
                raise CheckFailed(
                    f"{self.name}/{name}: {found} of {size} bytes are there; give the same command"
                    " again."
                )


def _same(there: RemoteObject | None, path: Path, size: int) -> bool:
    """Whether the service has these bytes; where its ETag is no digest, it has not."""
    if there is None or there.size != size:
        return False
    return there.version.strip('"') == etag(path)


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names)
