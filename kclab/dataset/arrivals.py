"""Bringing foreign tensors into a store's blob folder: each file is read once and hashed.

Nothing gets its final name before everything has been verified: what arrives waits in memory, or
beyond some bytes in `blob/tmp`, to be named by `settle` or dropped by `discard`. Large files are
hashed on all cores (hashlib lets other threads run meanwhile); small ones on the calling thread,
where they are faster than any hand-over between threads.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from kclab.blob.folder import SUFFIX, BlobFolder, hash_tensor
from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.errors import BlobDamaged, EnvironmentLacking
from kclab.dataset.source_file import CHUNK, SMALL, Failed, NotFetched, SourceFile, Tensor

FileProgress = Callable[[int, int], None]
"""Called with (files done, files in all) now and then, from any thread."""
SYNC_BESIDE = 64 << 20
"""Bytes up to which files are synced while their rows are inserted: a fraction of a second."""
HELD_BYTES = 64 << 20
"""Bytes of small files that wait in memory: creating a file once costs half of naming it twice."""
REPORT_EVERY = 64
"""Small files between two reports."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One verified tensor."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


Outcome = Arrival | NotFetched | Failed
Source = tuple[str, str]
"""(absolute path, tensor key)."""


class Arrivals:
    """Tensors on their way into a blob folder; one use each."""

    def __init__(
        self, folder: BlobFolder, *, link: bool = False, progress: FileProgress | None = None
    ) -> None:
        self.folder = folder
        self.link = link
        self.outcomes: dict[Source, Outcome] = {}
        self._progress = progress or (lambda done, total: None)
        self._done = 0
        self._total = 0
        self._held: dict[str, tuple[bytes, memoryview]] = {}
        """Digest to header and bytes of what waits in memory."""
        self._room = HELD_BYTES
        self._waiting: dict[str, str] = {}
        """Digest to its file in `blob/tmp`."""
        self._temporaries: set[str] = set()
        """Files in `blob/tmp` that have no final name yet."""
        self._batch = folder.batch()
        self._stem = ""
        self._numbers = itertools.count()
        self._root = str(folder.root)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def bring(self, sources: Iterable[Source]) -> None:
        """Read, hash and park every tensor; afterwards `outcomes` has each."""
        wanted: dict[str, list[str]] = {}
        for path, key in sources:
            wanted.setdefault(path, []).append(key)
        self._total = len(wanted)
        if not wanted:
            return
        self._stem = str(self._batch.temporary()).removesuffix(SUFFIX)
        large: SimpleQueue[tuple[str, list[str]]] = SimpleQueue()
        buffer = bytearray(CHUNK)
        with self._disk():
            for path, keys in wanted.items():
                if not self._take(path, keys, buffer, SMALL):
                    large.put((path, keys))
            self._take_large(large)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """A full or failing disk as one sentence."""
        try:
            yield
        except OSError as error:
            raise EnvironmentLacking(
                f"{self.folder.root}: {error.strerror}; nothing was imported."
            ) from error

    def _take_large(self, queue: SimpleQueue[tuple[str, list[str]]]) -> None:
        count = min(queue.qsize(), os.cpu_count() or 1)
        workers = [threading.Thread(target=self._drain, args=(queue,)) for _ in range(count - 1)]
        for worker in workers:
            worker.start()
        try:
            if count:
                self._drain(queue)
        finally:
            self._failure = self._failure or (None if queue.empty() else InterruptedError())
            for worker in workers:
                worker.join()
        if self._failure is not None:
            raise self._failure

    def _drain(self, queue: SimpleQueue[tuple[str, list[str]]]) -> None:
        buffer = bytearray(CHUNK)
        while self._failure is None:
            try:
                path, keys = queue.get_nowait()
            except Empty:
                return
            try:
                self._take(path, keys, buffer, None)
            except BaseException as error:  # handed to the calling thread, which raises it
                self._failure = error

    def _take(self, path: str, keys: list[str], buffer: bytearray, limit: int | None) -> bool:
        """Bring a file's tensors unless it is larger than `limit` bytes."""
        with SourceFile(path) as file:
            if limit is not None and file.size > limit:
                return False
            for key in keys:
                found = file.tensor(key)
                if isinstance(found, Tensor):
                    self.outcomes[path, key] = self._park(file, found, buffer)
                else:
                    self.outcomes[path, key] = found
        self._report(file.size > SMALL)
        return True

    def _report(self, large: bool) -> None:
        with self._lock:
            self._done += 1
        if large or self._done % REPORT_EVERY == 0 or self._done == self._total:
            self._progress(self._done, self._total)

    def _park(self, file: SourceFile, tensor: Tensor, buffer: bytearray) -> Outcome:
        """Hash one tensor while it is copied, linked or cloned to a temporary file."""
        if file.data is not None:
            sha256 = file.digest(tensor, buffer, None)
            known = sha256 is None or sha256 in self._held or sha256 in self._waiting
            waiting = None if known else self._keep_small(str(sha256), file, tensor)
        else:
            waiting, sha256 = self._copy_large(file, tensor, buffer)
        if sha256 is None:
            return Failed(f"damaged blob {file.path}: shrank while it was read.")
        slot = tensor.slot
        if waiting is not None:
            with self._lock:
                first = self._waiting.setdefault(sha256, waiting)
            if first != waiting:
                self._drop(waiting)
        return Arrival(sha256, slot.dtype, slot.shape, slot.nbytes)

    def _keep_small(self, sha256: str, file: SourceFile, tensor: Tensor) -> str | None:
        """Its file in `blob/tmp`, or None where it waits in memory."""
        linked = self.link and tensor.whole_file
        if not linked and len(file.data or b"") <= self._room:
            self._room -= len(file.data or b"")
            self._held[sha256] = file.content(tensor)
            return None
        target = self._temporary()
        if not (linked and file.link(target)):
            file.write(tensor, target)
        return target

    def _copy_large(
        self, file: SourceFile, tensor: Tensor, buffer: bytearray
    ) -> tuple[str, str | None]:
        target = self._temporary()
        shared = tensor.whole_file and ((self.link and file.link(target)) or file.clone(target))
        return target, file.digest(tensor, buffer, None if shared else target)

    def _temporary(self) -> str:
        target = f"{self._stem}.{next(self._numbers)}{SUFFIX}"
        self._temporaries.add(target)
        return target

    def _drop(self, temporary: str) -> None:
        self._temporaries.discard(temporary)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108 - thousands of these; no Path objects

    def arrived(self) -> dict[str, Arrival]:
        """Every verified tensor, by digest."""
        return {o.sha256: o for o in self.outcomes.values() if isinstance(o, Arrival)}

    def damaged(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` whose file is already in the folder and holds something else."""
        present = [d for d in digests if os.path.lexists(self._path(d))]
        return [digest for digest in present if not _holds(self.folder, digest)]

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that have no file in the folder."""
        return [digest for digest in digests if not os.path.lexists(self._path(digest))]

    def settle(self, digests: Iterable[str], nbytes: int) -> None:
        """Give `digests` their final names; many bytes (`nbytes`) are made durable at once."""
        wanted = sorted(digests)  # one folder after another, which a file system does faster
        with self._disk():
            self._require_room([self._held[d] for d in wanted if d in self._held])
            for sha256 in wanted:
                if sha256 in self._held:
                    self._batch.create(sha256, *self._held.pop(sha256))
                    continue
                temporary = self._waiting[sha256]
                self._batch.place(temporary, self._path(sha256))
                self._temporaries.discard(temporary)
            if nbytes > SYNC_BESIDE:
                self._batch.sync()

    def _require_room(self, held: Sequence[tuple[bytes, memoryview]]) -> None:
        """Raise OSError while nothing is written yet.

        What has its name cannot be taken back: another process may have found it whole, and have
        named it in a row.
        """
        if not held:
            return
        disk = os.statvfs(self._root)
        blocks = sum((len(head) + len(data)) // disk.f_frsize + 1 for head, data in held)
        if blocks > disk.f_bavail or (disk.f_files and len(held) > disk.f_favail):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        """Everything settled is durable once the block ends, or it raises EnvironmentLacking.

        The block inserts rows and commits none: a disk works beside it, for a moment only.
        """
        with ThreadPoolExecutor(1, "kclab-sync") as pool:
            pending = pool.submit(self._batch.sync)
            yield
            with self._disk():
                pending.result()

    def _path(self, sha256: str) -> str:
        return f"{self._root}/{sha256[:2]}/{sha256[2:]}{SUFFIX}"

    def discard(self) -> None:
        """Drop whatever has no final name and will get none."""
        for temporary in list(self._temporaries):
            self._drop(temporary)


def _holds(folder: BlobFolder, sha256: str) -> bool:
    try:
        return hash_tensor(folder.path(sha256), TENSOR_KEY)[1] == sha256
    except (BlobDamaged, OSError):
        return False
