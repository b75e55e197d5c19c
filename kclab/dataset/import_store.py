"""Importing another kclab store, or an export that carries one: all its rows, by stable keys.

Runs, environments, requests, captures, verdicts, measurements, labels: whatever the other store
knows comes along. The same rule holds as for folders: a capture counts once its last replay
passed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.errors import BadUsage, BlobDamaged, DatasetRefused
from kclab.core.times import now_us
from kclab.dataset.arrivals import Arrival, Arrivals
from kclab.dataset.cases import Refusal
from kclab.dataset.import_files import FileImport
from kclab.dataset.known import known_blobs
from kclab.dataset.merge import Merge
from kclab.dataset.options import ImportOptions, ImportSummary, Progress, RootRefused
from kclab.dataset.paths import Containment
from kclab.dataset.tree import Tree
from kclab.dataset.validation import LAST_STATUS
from kclab.db.connection import connect_read, translated, writing
from kclab.db.rows import BlobRow, add_blobs
from kclab.db.runs import ActiveRun

ROWS = Path("kclab") / "kclab.db"
"""Where an export keeps the rows that its format cannot hold."""
SQLITE = b"SQLite format 3\0"
MEND = "take the good rows with --partial, or those without a verdict with --include-unvalidated."


def find_database(path: Path) -> Path | None:
    """The database of a kclab store or export at `path`; None when it is neither."""
    if path.is_dir():
        for name in (ROWS, Path("kclab.db")):
            if (path / name).is_file():
                return path / name
        return None
    if path.is_file():
        with path.open("rb") as file:
            return path if file.read(len(SQLITE)) == SQLITE else None
    return None


def import_store(
    active: ActiveRun, tree: Tree, database: Path, options: ImportOptions, progress: Progress
) -> ImportSummary:
    """Merge the store whose rows are in `database` into the run's store.

    Raises RootRefused, DatasetRefused for rows that break the schema, and what `connect_read`
    raises for a database that is damaged, older or newer.
    """
    if database.samefile(active.store.database):
        raise BadUsage(f"{tree.origin} is this store itself.")
    summary = ImportSummary("kclab export" if database.parent.name == "kclab" else "kclab store")
    with translated(database), closing(connect_read(database)) as source:
        source.execute("PRAGMA trusted_schema=OFF")
        source.execute("BEGIN")  # one moment of a store that others may be writing
        importer = _StoreImport(active, tree, database, source, options, summary)
        importer.run(progress)
    return summary


@dataclass(slots=True)
class _StoreImport:
    active: ActiveRun
    tree: Tree
    database: Path
    source: sqlite3.Connection
    options: ImportOptions
    summary: ImportSummary
    unvalidated: list[str] = field(default_factory=list)
    """Receipts that come without a verdict."""

    def run(self, progress: Progress) -> None:
        skip = self._judge()
        self._refuse()
        rows = self._blob_rows(skip)
        files = self._files_import()
        arrivals = Arrivals(
            self.active.store.blobs,
            link=self.options.link,
            progress=lambda done, total: progress("reading blobs", done, total),
        )
        try:
            absent = self._bring(rows, arrivals)
            self.summary.refused += files.verify()
            self._refuse()
            placing = self._placing(arrivals)
            arrivals.settle(placing, self.summary.nbytes)
            files.place()
            self._commit(rows, absent, skip, arrivals, files)
        finally:
            arrivals.discard()

    def _files_import(self) -> FileImport:
        active = self.active
        return FileImport(
            active.store,
            active.connection,
            self.tree,
            self.database,
            self.source,
            self.options.rereads,
        )

    def _judge(self) -> dict[str, set[int]]:
        """Captures (and workloads that have no other) to leave out, each named."""
        skip: dict[str, set[int]] = {"capture": set(), "workload": set()}
        rows = self.source.execute(
            f"SELECT c.id, c.uuid, d.name, {LAST_STATUS}"
            " FROM capture c JOIN workload w ON w.id = c.workload_id"
            " JOIN definition d ON d.id = w.definition_id"
            " WHERE EXISTS(SELECT 1 FROM capture_output o WHERE o.capture_id = c.id)"
        )
        for capture, uuid, definition, status in rows:
            if status == "passed":
                continue
            if status is None and self.options.include_unvalidated:
                self.unvalidated.append(uuid)
                continue
            why = "no replay has judged it" if status is None else f"its last replay {status}"
            where = f"{self.database}: capture {uuid}"
            self.summary.refused.append(Refusal(where, why, definition, uuid))
            skip["capture"].add(capture)
        if skip["capture"]:
            skip["workload"] = self._left_alone(skip["capture"])
        return skip

    def _left_alone(self, captures: set[int]) -> set[int]:
        """Workloads all of whose captures are left out."""
        kept: set[int] = set()
        left: set[int] = set()
        for capture, workload in self.source.execute("SELECT id, workload_id FROM capture"):
            (left if capture in captures else kept).add(workload)
        return left - kept

    def _refuse(self) -> None:
        refused = self.summary.refused
        if any(refusal.unsafe for refusal in refused) or (refused and not self.options.partial):
            raise RootRefused(self.tree.path, refused, MEND)

    def _blob_rows(self, skip: dict[str, set[int]]) -> dict[str, BlobRow]:
        """The blobs that rows which come along refer to."""
        rows = self.source.execute("SELECT sha256, dtype, shape, nbytes, present, hint FROM blob")
        found = {
            sha256: BlobRow(sha256, dtype, tuple(_shape(shape)), nbytes, bool(present), hint)
            for sha256, dtype, shape, nbytes, present, hint in rows
        }
        if not skip["capture"]:
            return found
        only = self._referenced(skip["workload"], skip["capture"], inside=True)
        only -= self._referenced(skip["workload"], skip["capture"], inside=False)
        return {sha256: row for sha256, row in found.items() if sha256 not in only}

    def _referenced(self, workloads: set[int], captures: set[int], *, inside: bool) -> set[str]:
        """Blobs of the given workloads and captures, or of all the others."""
        inputs = self.source.execute(
            "SELECT workload_id, blob_sha256 FROM workload_input WHERE blob_sha256 IS NOT NULL"
        )
        found = {sha256 for workload, sha256 in inputs if (workload in workloads) == inside}
        outputs = self.source.execute("SELECT capture_id, blob_sha256 FROM capture_output")
        return found | {sha256 for capture, sha256 in outputs if (capture in captures) == inside}

    def _bring(self, rows: dict[str, BlobRow], arrivals: Arrivals) -> set[str]:
        """Verify and park the blobs that this store lacks; returns the absent ones' digests."""
        known = {} if self.options.rereads else known_blobs(self.active.connection, rows)
        wanted = [d for d, row in rows.items() if row.present and d not in known]
        places = dict(zip(wanted, self._files(wanted), strict=True))
        self.tree.fetch(places.values())
        arrivals.bring((location, TENSOR_KEY) for location in places.values())
        for digest, location in places.items():
            outcome = arrivals.outcomes[location, TENSOR_KEY]
            if isinstance(outcome, Arrival) and outcome.sha256 == digest:
                continue
            self.tree.doubt(location)
            reason = getattr(outcome, "reason", f"damaged blob {location}: not its name's content")
            unsafe = bool(getattr(outcome, "unsafe", False))
            where = f"{self.database}: blob {digest[:12]}…"
            self.summary.refused.append(Refusal(where, reason, unsafe=unsafe))
        return {digest for digest, row in rows.items() if not row.present}

    def _files(self, digests: Iterable[str]) -> list[str]:
        """Where the source keeps its blobs: in `blob/ab/…` beside the rows, or in the export."""
        files = Containment(self.database.parent)
        export = self._exported()
        places = []
        for digest in digests:
            own = files.locate(f"blob/{digest[:2]}/{digest[2:]}.safetensors")
            places.append(export.get(digest, own))
        return places

    def _exported(self) -> dict[str, str]:
        """Digest to file of the blobs that an export keeps under its format's own paths."""
        if self.database.parent.name != "kclab":
            return {}
        root = self.database.parent.parent
        files = Containment(root)
        names = ((PurePosixPath(n).stem, n) for n in self.tree.tensor_files(root / "blob"))
        return {stem: files.locate(f"blob/{name}") for stem, name in names if len(stem) == 64}

    def _placing(self, arrivals: Arrivals) -> list[str]:
        arrived = arrivals.arrived()
        vouched = known_blobs(self.active.connection, arrived)
        placing = [digest for digest in arrived if digest not in vouched]
        self.summary.repaired = arrivals.damaged(placing)
        broken = arrivals.missing(vouched) + arrivals.damaged(vouched)
        if broken and not self.options.repair:
            names = "\n".join(f"damaged blob {self.active.store.blobs.path(d)}" for d in broken)
            raise BlobDamaged(f"{names}\nreplace them from {self.tree.origin} with --repair.")
        self.summary.repaired += broken
        self.summary.blobs = len(placing)
        self.summary.nbytes = sum(arrived[digest].nbytes for digest in placing)
        return placing + broken

    def _commit(
        self,
        rows: dict[str, BlobRow],
        absent: set[str],
        skip: dict[str, set[int]],
        arrivals: Arrivals,
        files: FileImport,
    ) -> None:
        at = now_us()
        overrides = {
            "capture": {"arrived_us": at},
            "replay": {"imported": 1},
            "workload": {"added_us": at},
            "definition": {"added_us": at},
        }
        with writing(self.active.connection) as target, arrivals.syncing():
            merge = Merge(self.source, target, skip, overrides)
            try:
                add_blobs(target, rows.values(), verified_us=at)
                merge.run()
                self._mark_unvalidated(target)
                files.mark()
            except sqlite3.IntegrityError as error:
                raise DatasetRefused(
                    f"{self.database}: its rows break the schema ({error}); nothing was imported."
                ) from error
        files.bring_logs()
        self.summary.images = len(files.places)
        self._count(merge, len(absent))

    def _mark_unvalidated(self, target: sqlite3.Connection) -> None:
        target.execute(
            "UPDATE capture SET receipt = json_set(receipt, '$.unvalidated', json('true'))"
            " WHERE uuid IN (SELECT value FROM json_each(?))"
            " AND NOT EXISTS(SELECT 1 FROM replay r WHERE r.capture_id = capture.id)",
            (json.dumps(self.unvalidated),),
        )

    def _count(self, merge: Merge, absent: int) -> None:
        summary, added = self.summary, dict(merge.added)
        summary.workloads = added.pop("workload")
        summary.captures = added.pop("capture")
        summary.replays = added.pop("replay")
        summary.definitions = added.pop("definition")
        summary.foreign = added.pop("foreign_record")
        summary.runs = added.pop("run")
        summary.other = sum(added.values())
        summary.known = merge.known["capture"]
        summary.absent = absent
        summary.unvalidated = len(self.unvalidated)


def _shape(text: str) -> list[int]:
    return [int(size) for size in json.loads(text)]
