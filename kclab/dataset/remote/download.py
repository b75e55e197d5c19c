"""Fetching objects into a folder: in pieces, whole under their names or not at all, none twice.

A part waits under `parts/` and goes on where it broke off while the object's version stays. A
journal says which version of an object a finished file is. Its line comes before the file has its
name: a process killed in between leaves a whole part, of which no byte is missing.
"""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from kclab.core.digest import text_sha256
from kclab.core.errors import DatasetRefused, EnvironmentLacking
from kclab.core.units import format_bytes
from kclab.dataset.options import Progress
from kclab.dataset.remote.place import Place, RemoteObject
from kclab.dataset.remote.pool import Transfers

PIECE = 8 << 20
"""Bytes of one request."""
SPARE = 64 << 20
"""Bytes that a download leaves free."""
_NO_FILE_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""A key may be another key's folder, or too long: object stores have no such rules."""


class Download:
    """The objects below one path of a place, on their way into `target`."""

    def __init__(self, place: Place, root: str, target: Path, state: Path, report: Progress):
        """`root` is fsspec's path of the objects; `state` is for parts and the journal."""
        self.place = place
        self.root = root
        self.target = target
        self.objects = 0
        self.nbytes = 0
        """What this process fetched."""
        self._state = state
        self._report = report
        self._lock = threading.Lock()
        self._fetched = _read_journal(state / "fetched.jsonl")

    def fetch(self, objects: Iterable[RemoteObject]) -> None:
        """Have every object in `target`; raises DatasetRefused for one that is not what it was.

        Raises EnvironmentLacking where the network or the disk fails.
        """
        wanted = [one for one in objects if not self.has(one)]
        if not wanted:
            return
        (self._state / "parts").mkdir(parents=True, exist_ok=True)
        nbytes = sum(one.size for one in wanted)
        self._require_space(nbytes)
        transfers = Transfers("fetching", len(wanted), nbytes, self._report)
        transfers.run(lambda one: self._fetch(one, transfers), wanted)

    def has(self, one: RemoteObject) -> bool:
        """Whether this version of the object is here, whole."""
        if self._fetched.get(self._key(one)) != one.version or not one.version:
            return False
        try:
            return self._path(one).stat().st_size == one.size
        except OSError:
            return False

    def forget(self, one: RemoteObject) -> None:
        """Remove the copy, so that the next import fetches the object again."""
        self._path(one).unlink(missing_ok=True)

    def _require_space(self, nbytes: int) -> None:
        free = shutil.disk_usage(self._state).free
        if nbytes + SPARE > free:
            raise EnvironmentLacking(
                f"{self._state}: {format_bytes(nbytes)} are to come and {format_bytes(free)} are"
                " free; make room, then give the same command again."
            )

    def _fetch(self, one: RemoteObject, transfers: Transfers) -> None:
        if one.written not in (None, one.size):
            raise self._altered(one, f"{one.size} of {one.written} bytes")
        part = self._state / "parts" / text_sha256(f"{self._key(one)}\n{one.version}")[:32]
        self._fill(one, part, transfers)
        self._require_content(one, part)
        path = self._path(one)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # an older version must not pass for what the line says
            self._note(one)
            part.replace(path)
        except OSError as error:
            if error.errno in _NO_FILE_NAME:
                raise DatasetRefused(
                    f"{self.place.url}/{one.name}: no file can have this name ({error.strerror})."
                ) from error
            raise

    def _fill(self, one: RemoteObject, part: Path, transfers: Transfers) -> None:
        with part.open("ab") as file:
            begin = file.tell() if one.version else 0
            begin = 0 if begin > one.size else begin
            file.truncate(begin)
            transfers.add(begin)
            for at in range(begin, one.size, PIECE):
                end = min(at + PIECE, one.size)
                data = self.place.read(f"{self.root}/{one.name}", at, end)
                if len(data) != end - at:
                    raise self._altered(one, f"{at + len(data)} of {one.size} bytes")
                file.write(data)
                with self._lock:
                    self.nbytes += len(data)
                transfers.add(len(data))

    def _require_content(self, one: RemoteObject, part: Path) -> None:
        """Hold what came against what the listing said of the content."""
        if one.digest is not None:
            found = one.digest.of(part)
            if found != one.digest:
                part.unlink()
                raise self._altered(one, f"its content has {found}, expected was {one.digest}")
        elif one.size > PIECE and self.place.version(f"{self.root}/{one.name}") != one.version:
            part.unlink()
            raise self._altered(one, "it changed while it was fetched")

    def _altered(self, one: RemoteObject, reason: str) -> DatasetRefused:
        return DatasetRefused(
            f"{self.place.url}/{one.name}: {reason}; the object is cut short or altered,"
            " and nothing was imported."
        )

    def _note(self, one: RemoteObject) -> None:
        line = "\n" + json.dumps([self._key(one), one.version])  # begins one: the last may be torn
        with self._lock, (self._state / "fetched.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
            self._fetched[self._key(one)] = one.version
            self.objects += 1

    def _key(self, one: RemoteObject) -> str:
        return f"{self.root}/{one.name}"

    def _path(self, one: RemoteObject) -> Path:
        return self.target / one.name


def _read_journal(path: Path) -> dict[str, str]:
    """Path to version; a line that a killed process tore counts for nothing."""
    found: dict[str, str] = {}
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            key, version = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(key, str) and isinstance(version, str):
            found[key] = version
    return found
