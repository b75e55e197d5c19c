"""The writer: one thread a process that hashes, stores and commits what the recorder copied.

Captures become durable in groups: all blobs of a group are written and synced once, then one
transaction holds their rows. When another process keeps the database locked, the rows go to the
run's spool instead, which the parent reads in at the end.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kclab.blob.batch import BlobBatch
from kclab.blob.folder import BlobFolder
from kclab.capture import forks
from kclab.capture.backlog import Backlog
from kclab.capture.call import Pending
from kclab.capture.checksum import ContentKey, KnownTensors
from kclab.capture.control import ControlFolder, ProgressFile
from kclab.capture.coverage import CAPTURED, NOT_WRITTEN, STORING, Coverage
from kclab.capture.device_room import DeviceRoom
from kclab.capture.entries import CaptureEntry, CountEntry, Entry, to_line, write_entries
from kclab.capture.plan import CapturePlan
from kclab.capture.snapshot import Snapshot, fetch, key_on_device, stored_form
from kclab.capture.turns import short_turns
from kclab.core.digest import tensor_digest
from kclab.core.errors import KclabError
from kclab.db.connection import busy_timeout_ms, connect_write, writing
from kclab.db.queries.coverage import OWN_TIME
from kclab.db.store import Store

GROUP_BYTES = 128 << 20
"""Copied bytes that one transaction may wait for."""
COUNTS_EVERY_SECONDS = 2.0
IMPATIENT_MS = 100
"""Busy timeout after the database proved locked, until it answers again."""


@dataclass(slots=True)
class Record:
    """A finished call on its way to the store."""

    pending: Pending
    outputs: dict[str, Snapshot]
    output_strides: dict[str, list[int]]
    occurrence: int = 0
    """Counts a process's captures, from 1."""


@dataclass(slots=True)
class Rows:
    """Entries to commit as they are, and whom to tell once they are."""

    entries: list[Entry]
    done: threading.Event = field(default_factory=threading.Event)


Item: TypeAlias = Record | Rows


class Writer(threading.Thread):
    """Takes items off the backlog until it is stopped and the backlog is empty."""

    def __init__(
        self,
        plan: CapturePlan,
        process: str,
        backlog: Backlog[Item],
        known: KnownTensors,
        coverage: Coverage,
        progress: ProgressFile,
        describe: Callable[[Record, Mapping[str, str]], CaptureEntry],
        room: DeviceRoom,
    ):
        super().__init__(name="kclab-writer", daemon=True)
        self._plan = plan
        self._process = process
        self._backlog = backlog
        self._known = known
        self._coverage = coverage
        self._progress = progress
        self._describe = describe
        self._room = room
        self._blobs: BlobFolder = Store.at(plan.database).blobs
        self._control = ControlFolder(plan.control)
        self._durable: set[str] = set()
        self._connection: sqlite3.Connection | None = None
        self._counted = -1
        self._given_up = progress.begun_at.given_up
        self._stored = progress.begun_at.stored
        self.moved = progress.begun_at.moved
        """Grows with all that this thread gets done: whoever waits can tell it from stuck."""
        self._keys: dict[ContentKey, str] = {}
        """Of the group under way: known once the group is durable."""
        self._stopping = threading.Event()
        forks.disconnect_at_forks(self)

    def stop(self) -> None:
        """End once everything that waits is stored."""
        self._stopping.set()
        self._backlog.put(Rows([]), 0)

    def run(self) -> None:
        try:
            items: list[tuple[Item, int]] = []
            while items or not self._stopping.is_set():
                items = self._backlog.take_all(
                    0 if self._stopping.is_set() else COUNTS_EVERY_SECONDS
                )
                with short_turns():
                    self._work(items)
        except BaseException as error:
            self._control.fail(
                self._process, f"the writer stopped: {error!r}", traceback.format_exc()
            )
        finally:
            self._backlog.close()
            with forks.DATABASE:
                self.disconnect()

    def _work(self, items: list[tuple[Item, int]]) -> None:
        for group in _groups(items):
            began = time.thread_time_ns()
            self._store(group)
            spent = (time.thread_time_ns() - began) // 1000
            self._coverage.count(OWN_TIME, STORING, spent)
        if not items:
            self._commit(list(self._new_counts()))

    def _store(self, group: list[tuple[Item, int]]) -> None:
        batch = self._blobs.batch()
        entries: list[Entry] = []
        self._keys.clear()
        for item, nbytes in group:
            if isinstance(item, Rows):
                entries += item.entries
            else:
                entries += self._prepared(item, batch)
                self._room.give_back(item.pending.device, item.pending.staged)
            self._backlog.written(nbytes)
        if not self._synced(batch):
            entries = [e for e in entries if not isinstance(e, CaptureEntry)]
        captures = [e for e in entries if isinstance(e, CaptureEntry)]
        for entry in captures:
            self._coverage.count(entry.body["name"], CAPTURED)
        if self._commit([*entries, *self._new_counts()]):
            self._learn()
            self._stored += len(captures)
            self._progress.stored(self._stored)
        self._move()
        for item, _ in group:
            if isinstance(item, Rows):
                item.done.set()

    def _prepared(self, record: Record, batch: BlobBatch) -> Iterator[CaptureEntry]:
        """The entry of a record, its blobs added to the batch; none when that fails."""
        pending = record.pending
        snapshots = {**pending.inputs, **record.outputs}
        try:
            digests, new = {}, 0
            for name, value in snapshots.items():
                if isinstance(value, Snapshot):
                    digests[name], written = self._add_blob(value, batch)
                    new += written
            # What turned out to be stored already does not count against the allowance.
            self._control.reserve(new - pending.reserved, self._plan.max_bytes)
            yield self._describe(record, digests)
        except Exception as error:  # one capture that fails must not end the others
            self._give_up(pending, error)

    def _move(self) -> None:
        self.moved += 1
        self._progress.moved(self.moved)

    def _add_blob(self, snapshot: Snapshot, batch: BlobBatch) -> tuple[str, int]:
        """(digest, new bytes) of a snapshot; its copy is released."""
        if snapshot.digest is not None:
            return snapshot.digest, 0
        if snapshot.waits_on_device:
            found = self._recognised(snapshot)
            if found is not None:
                return found, 0
            fetch(snapshot)
        stored, key = stored_form(snapshot)
        digest = tensor_digest(stored.dtype, stored.shape, stored.data)
        new = 0
        if digest not in self._durable:
            known = self._has_row(digest)
            batch.add(stored.dtype, stored.shape, stored.data, digest, known=known)
            self._durable.add(digest)
            new = 0 if known else snapshot.nbytes
        if key is not None:
            self._keys[key] = digest
        snapshot.copy = None
        self._move()
        return digest, new

    def _recognised(self, snapshot: Snapshot) -> str | None:
        """The digest of a copy on the device whose content is stored, or is about to be."""
        key = key_on_device(snapshot)
        digest = None if key is None else self._known.digest(key) or self._keys.get(key)
        if digest is not None:
            snapshot.copy = None
            self._move()
        return digest

    def _has_row(self, digest: str) -> bool:
        try:
            with forks.DATABASE:
                found = self._database().execute(
                    "SELECT 1 FROM blob WHERE sha256 = ? AND present = 1", (digest,)
                )
                return found.fetchone() is not None
        except (KclabError, sqlite3.Error):
            return False  # its file is then looked into

    def _synced(self, batch: BlobBatch) -> bool:
        try:
            batch.sync()
        except OSError as error:
            self._durable.clear()
            self._keys.clear()
            self._control.fail(self._process, f"{self._blobs.root} cannot be synced: {error}")
            return False
        return True

    def _commit(self, entries: list[Entry]) -> bool:
        """Commit entries, or spool them; False when neither worked."""
        if not entries:
            return True
        try:
            with forks.DATABASE:
                connection = self._database()
                with writing(connection):
                    write_entries(connection, self._plan.run_id, entries)
                connection.execute(f"PRAGMA busy_timeout={busy_timeout_ms()}")
            return True
        except (KclabError, sqlite3.Error) as error:
            return self._spool(entries, error)

    def _spool(self, entries: Iterable[Entry], reason: Exception) -> bool:
        with forks.DATABASE:
            if self._connection is not None:
                self._connection.execute(f"PRAGMA busy_timeout={IMPATIENT_MS}")
        try:
            self._control.spool(self._process, "".join(map(to_line, entries)))
        except OSError as error:
            message = f"captures lost: {reason}; and they cannot be spooled: {error}"
            self._control.fail(self._process, message)
            return False
        return True

    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect_write(self._plan.database, any_thread=True)
        return self._connection

    def disconnect(self) -> None:
        """Close the database until it is needed again; whoever forks calls this."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _new_counts(self) -> Iterator[CountEntry]:
        changes = self._coverage.changes
        if changes != self._counted:
            self._counted = changes
            yield CountEntry(self._process, self._coverage.snapshot())

    def _learn(self) -> None:
        """The group's tensors are durable: from now on their checksums stand for them."""
        for key, digest in self._keys.items():
            self._known.add(key, digest)

    def _give_up(self, pending: Pending, error: Exception) -> None:
        reason = f"{NOT_WRITTEN}: {type(error).__name__}: {error}"
        self._coverage.count(pending.call.definition.name, reason)
        self._control.reserve(-pending.reserved, self._plan.max_bytes)
        if pending.claim is not None:
            self._control.release(pending.claim)
        self._given_up += 1
        self._progress.given_up(self._given_up)


def _groups(items: list[tuple[Item, int]]) -> Iterator[list[tuple[Item, int]]]:
    """Items in order, in groups of at most GROUP_BYTES (or one larger item)."""
    group: list[tuple[Item, int]] = []
    size = 0
    for item, nbytes in items:
        takes = item.pending.reserved if isinstance(item, Record) else 0
        if group and size + takes > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append((item, nbytes))
        size += takes
    if group:
        yield group
