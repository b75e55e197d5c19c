"""Files that tasks name, on other machines: read in place where they are the same, else fetched.

The driver says what its file looks like; a node that sees that very file, or one of the size and
content that the digest names, reads its own. Any other is sent by the driver, which sends only
what its own tasks name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kclab.blob.folder import hash_tensor
from kclab.core.digest import text_sha256
from kclab.core.errors import KclabError
from kclab.replay.file_state import FileState, file_state
from kclab.replay.task import StoredTensor, Task

LARGE = 1 << 20
"""Bytes from which a file is put into Ray's object store, where a node's workers share it;
smaller ones travel inside the call."""
KEPT = 2 << 30
"""Bytes that the driver keeps in the object store for the next worker that asks."""
ROOM = 8 << 30
"""Bytes of fetched files that a worker keeps."""


def named_files(task: Task) -> dict[str, StoredTensor]:
    """The files of a task by path, each with one of the tensors in it."""
    tensors = (v for v in task.inputs.values() if isinstance(v, StoredTensor))
    return {stored.path: stored for stored in (*tensors, *task.outputs.values())}


def state_of(path: str) -> FileState | None:
    """The state of a file; None where there is none to read."""
    try:
        return file_state(Path(path))
    except OSError:
        return None


class Shipping:
    """The driver's side: reads files for workers that do not see them."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._put: OrderedDict[str, tuple[FileState | None, int, Any]] = OrderedDict()

    def load(self, path: str) -> Any:
        """A file's bytes, or where Ray keeps them; None where it cannot be read."""
        state = state_of(path)
        known = self._put.get(path)
        if known is not None and known[0] == state:
            self._put.move_to_end(path)
            return known[2]
        try:
            data = Path(path).read_bytes()
        except OSError:
            return None
        if len(data) < LARGE:
            return data
        self._put[path] = (state, len(data), self._ray.put(data))
        while len(self._put) > 1 and sum(size for _, size, _ in self._put.values()) > KEPT:
            self._put.popitem(last=False)
        return self._put[path][2]


class NodeFiles:
    """A worker's side: where to read each file, and the fetched ones."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self.folder = folder
        self.room = room
        self._fetched: OrderedDict[str, tuple[FileState | None, Path, int]] = OrderedDict()
        self._verified: dict[tuple[str, str | None], FileState] = {}

    def receive(self, blobs: Mapping[str, bytes], states: Mapping[str, FileState | None]) -> None:
        """Keep files that the driver sent. Raises OSError where there is no room."""
        self.folder.mkdir(exist_ok=True)
        for path, data in blobs.items():
            place = self.place_of(path)
            place.write_bytes(data)
            self._fetched[path] = (states.get(path), place, len(data))
            self._fetched.move_to_end(path)

    def place_of(self, path: str) -> Path:
        """Where a fetched file lies."""
        return self.folder / f"{text_sha256(path)}.safetensors"

    def place(self, stored: StoredTensor, state: FileState | None) -> str | None:
        """Where to read a file that looks so at the driver; None: it has to be sent."""
        fetched = self._fetched.get(stored.path)
        if fetched is not None and fetched[0] == state:
            self._fetched.move_to_end(stored.path)
            return str(fetched[1])
        own = state_of(stored.path)
        # Where the driver has none either, what is here decides.
        if state is None or own == state or self._alike(stored, own, state):
            return stored.path
        return None

    def _alike(self, stored: StoredTensor, own: FileState | None, theirs: FileState) -> bool:
        """Whether another file of that path, such as a copy on this node, has the content."""
        if own is None or own[1] != theirs[1] or stored.sha256 is None:
            return False
        key = stored.path, stored.sha256
        if self._verified.get(key) != own:
            try:
                _, found = hash_tensor(Path(stored.path), stored.key)
            except (OSError, KclabError):
                return False
            if found != stored.sha256:
                return False
            self._verified[key] = own
        return True

    def tidy(self, in_use: Iterable[str]) -> None:
        """Drop the files longest unused until the rest fits, but none that is in use."""
        used = set(in_use)
        total = sum(size for _, _, size in self._fetched.values())
        for path in [path for path in self._fetched if path not in used]:
            if total <= self.room:
                return
            _, place, size = self._fetched.pop(path)
            place.unlink(missing_ok=True)
            total -= size
