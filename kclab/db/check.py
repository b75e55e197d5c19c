"""`kclab db check`: is the database sound, and is every blob and file that it names really there.

Nothing is changed. A file may lie in `blob/` without a row (its writer died, or is about to commit
it); a row without its bytes is damage, unless it says that they are elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field

from kclab.blob.folder import BlobFolder
from kclab.blob.kept import KeptFolder, KeptName
from kclab.core.errors import BlobAbsent, BlobDamaged, DatabaseProblem
from kclab.db.beside import named_beside
from kclab.db.connection import journal_mode, translated
from kclab.db.kept_files import is_named, named_files
from kclab.db.store import Store

Progress = Callable[[int, int], None]
"""Called with (bytes hashed so far, bytes in all)."""

GROUP_BYTES = 64 << 20
GROUP_BLOBS = 256
"""Work is handed to a thread in groups no larger than this: small blobs cost more to hand over
than to hash."""


KINDS = ("integrity", "foreign_key", "damaged", "missing", "absent", "unreferenced", "leftover")
"""What can be wrong, the worst first: the database, a row's bytes, and what is merely left over."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it should be."""

    kind: str
    """One of KINDS."""
    name: str
    """A blob's digest, a kept file's or a leftover's path, or a table."""
    detail: str


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    journal_mode: str
    faults: list[Fault] = field(default_factory=list)
    blobs: int = 0
    """Blobs that should be here and were hashed."""
    files: int = 0
    """Kept files that are here and were hashed."""
    nbytes: int = 0

    def of(self, *kinds: str) -> list[Fault]:
        """The faults of these kinds."""
        return [fault for fault in self.faults if fault.kind in kinds]

    @property
    def database_damaged(self) -> bool:
        """The rows themselves cannot be relied on."""
        return bool(self.of("integrity", "foreign_key"))

    @property
    def blobs_damaged(self) -> bool:
        """A row's bytes, a blob's or a kept file's, are wrong or gone."""
        return bool(self.of("damaged", "missing"))


def check(store: Store, progress: Progress | None = None, jobs: int | None = None) -> CheckReport:
    """Check the database and re-hash every present blob, on `jobs` threads (all cores).

    Raises what `store.read` raises.
    """
    with closing(store.read()) as connection, translated(connection):
        report = CheckReport(journal_mode(connection))
        report.faults += _database_faults(connection)
        if report.database_damaged:
            return report
        # Before the rows are read: a file that gets its row meanwhile is then not unreferenced.
        files, kept = set(store.blobs.present()), set(store.files.present())
        rows = connection.execute("SELECT sha256, nbytes, present, hint FROM blob").fetchall()
        here = [(str(row[0]), int(row[1])) for row in rows if row[2]]
        report.blobs, report.nbytes = len(here), sum(size for _, size in here)
        hashed = _hash_all(store.blobs, here, progress, jobs or os.cpu_count() or 1)
        report.faults += [fault for fault in hashed if _still_known(connection, fault.name)]
        report.faults += _absent(rows)
        report.faults += _strangers(store, files - {str(row[0]) for row in rows})
        _check_kept(report, connection, store.files, kept)
    return report


def _database_faults(connection: sqlite3.Connection) -> Iterator[Fault]:
    for (message,) in connection.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield Fault("integrity", "kclab.db", message)
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield Fault("foreign_key", table, f"row {rowid} has no parent in {parent}")


def _still_known(connection: sqlite3.Connection, sha256: str) -> bool:
    """Whether nobody removed the row, with its file, while the blobs were hashed."""
    row = connection.execute("SELECT present FROM blob WHERE sha256 = ?", (sha256,)).fetchone()
    return row is not None and bool(row[0])


def _absent(rows: Sequence[sqlite3.Row]) -> Iterator[Fault]:
    for sha256, _, present, hint in rows:
        if not present:
            yield Fault("absent", sha256, hint or "its bytes are elsewhere")


def _strangers(store: Store, unreferenced: set[str]) -> Iterator[Fault]:
    if unreferenced:
        with contextlib.suppress(DatabaseProblem):  # no fault of this one; a clean-up refuses
            unreferenced -= named_beside(store)
    for sha256 in sorted(unreferenced):
        yield Fault("unreferenced", sha256, str(store.blobs.path(sha256)))
    for path in sorted(store.blobs.leftovers()):
        yield Fault("leftover", str(path), "a temporary file of a process that ended")


def _check_kept(
    report: CheckReport, connection: sqlite3.Connection, folder: KeptFolder, kept: set[KeptName]
) -> None:
    named = named_files(connection)
    for name in sorted(named):
        try:
            report.nbytes += folder.verify(name)
            report.files += 1
        except (BlobDamaged, BlobAbsent) as error:
            # Nobody may have removed the row, with its file, meanwhile.
            if is_named(connection, name):
                report.faults.append(_kept_fault(name, error, named[name]))
    for name in sorted(kept - named.keys()):
        report.faults.append(Fault("unreferenced", str(name), str(folder.path(name))))
    for path in sorted(folder.leftovers()):
        report.faults.append(Fault("leftover", str(path), "a temporary file"))


def _kept_fault(name: KeptName, error: BlobDamaged | BlobAbsent, elsewhere: bool) -> Fault:
    if isinstance(error, BlobDamaged):
        return Fault("damaged", str(name), str(error))
    if elsewhere:
        return Fault("absent", str(name), "its bytes are elsewhere")
    return Fault("missing", str(name), str(error))


def _hash_all(
    blobs: BlobFolder, rows: Sequence[tuple[str, int]], progress: Progress | None, jobs: int
) -> list[Fault]:
    total, done = sum(size for _, size in rows), 0
    faults: list[Fault] = []
    # Threads are enough: sha256 and reading let go of the interpreter lock.
    with ThreadPoolExecutor(jobs, thread_name_prefix="kclab-check") as pool:
        waiting: dict[Future[list[Fault]], int] = {
            pool.submit(_hash_group, blobs, group): size for group, size in _groups(rows)
        }
        try:
            for future in as_completed(waiting):
                faults += future.result()
                done += waiting[future]
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(faults, key=lambda fault: fault.name)


def _groups(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[list[str], int]]:
    """(digests, bytes): large blobs alone and first, so that no thread ends much later."""
    group: list[str] = []
    size = 0
    for sha256, nbytes in sorted(rows, key=lambda row: -row[1]):
        group.append(sha256)
        size += nbytes
        if size >= GROUP_BYTES or len(group) >= GROUP_BLOBS:
            yield group, size
            group, size = [], 0
    if group:
        yield group, size


def _hash_group(blobs: BlobFolder, digests: Sequence[str]) -> list[Fault]:
    return [fault for sha256 in digests if (fault := _fault(blobs, sha256))]


def _fault(blobs: BlobFolder, sha256: str) -> Fault | None:
    try:
        blobs.verify(sha256)
    except BlobDamaged as error:
        return Fault("damaged", sha256, str(error))
    except BlobAbsent as error:
        return Fault("missing", sha256, str(error))
    return None
