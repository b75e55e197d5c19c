"""The control folder of a capture run: what its processes tell each other and their parent.

It lies beside the database in `.kclab-run/<run uuid>` while the run lasts:

    plan.json            the plan
    workers/<process>    one JSON file a process: installing, armed or drained
    failures/<process>   why a process could not install capture, or had to give up
    progress/<process>   64-bit counters: captures handed to the writer, given up, and stored, and
                         whatever the writer has got done at all
    claims/              how many captures each definition and axes took of --max-per-axes
    allowance            bytes claimed so far against --max-bytes
    spool/<process>      rows that a busy database could not take, one JSON line each

Everything works between unrelated processes of one host, and survives any of them being killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.capture import forks
from kclab.core.digest import text_sha256
from kclab.core.environment import process_started_us
from kclab.core.times import now_us

RUNS_FOLDER = ".kclab-run"
SPARE_BYTES = 64 << 20
"""Disk space that capture never touches."""

_PROGRESS = struct.Struct("<qqqq")


def process_key(pid: int | None = None) -> str:
    """`<host>:<pid>:<process start>`: unique even where pids are recycled."""
    pid = pid or os.getpid()
    return f"{socket.gethostname()}:{pid}:{process_started_us(pid)}"


def is_alive(process: str) -> bool:
    """Whether the process of a key still runs (on this host)."""
    _, pid, started = process.rsplit(":", 2)
    return str(process_started_us(int(pid))) == started


@dataclass(frozen=True, slots=True)
class Progress:
    """What a process did with the captures that it took; the rest of them has to have rows."""

    handed: int
    """Captures that its writer was given."""
    given_up: int
    """Of these, captures that could not be written, each counted with its reason."""
    stored: int = 0
    """Of these, captures that are durable, as rows or in the spool."""
    moved: int = 0
    """Grows with every tensor that is written and every transaction: stands still when stuck."""

    @property
    def pending(self) -> int:
        """Captures that wait for the writer."""
        return max(0, self.handed - self.given_up - self.stored)


class ProgressFile:
    """The counters of this process, written so that a kill at any moment leaves them right."""

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        found = os.pread(self._descriptor, _PROGRESS.size, 0)
        self.begun_at = Progress(*_PROGRESS.unpack(found.ljust(_PROGRESS.size, b"\0")))
        """Zeros, unless this process has run another program before (`exec`)."""
        os.pwrite(self._descriptor, found.ljust(_PROGRESS.size, b"\0"), 0)

    def handed(self, count: int) -> None:
        """Captures handed to the writer so far."""
        self._put(0, count)

    def given_up(self, count: int) -> None:
        """Captures given up so far."""
        self._put(1, count)

    def stored(self, count: int) -> None:
        """Captures stored so far."""
        self._put(2, count)

    def moved(self, count: int) -> None:
        """What the writer has got done so far."""
        self._put(3, count)

    def _put(self, place: int, count: int) -> None:
        os.pwrite(self._descriptor, count.to_bytes(8, "little"), 8 * place)

    def close(self) -> None:
        """Release the file; what was written stays."""
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class ControlFolder:
    """One run's control folder."""

    path: Path

    @classmethod
    def of(cls, database: Path, run_uuid: str) -> ControlFolder:
        """The folder of a run, whether or not it exists."""
        return cls(database.parent.absolute() / RUNS_FOLDER / run_uuid)

    def create(self) -> None:
        """Make the folder and its parts."""
        for name in ("workers", "failures", "progress", "claims", "spool"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        (self.path / "turn").write_bytes(bytes(8))  # see kclab.capture.orders

    def remove(self) -> None:
        """Delete the folder, and `.kclab-run` with it when it was the last one."""
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self.path.parent.rmdir()
        except OSError:
            return  # another run's folder is there

    # Workers

    def write_worker(self, process: str, facts: Mapping[str, Any]) -> None:
        """Say where a process stands; replaces what it said before."""
        self._write("workers", process, facts)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Every process that loaded capture, by key."""
        return self._read("workers")

    def fail(
        self, process: str, message: str, traceback: str | None = None, *, fatal: bool = False
    ) -> None:
        """Report that a process cannot capture: the run fails, and at once where it is `fatal`."""
        facts = {"message": message, "traceback": traceback, "fatal": fatal, "at_us": now_us()}
        with contextlib.suppress(OSError):  # the run is over: there is nobody left to tell
            self._write("failures", process, facts)

    def failures(self) -> dict[str, dict[str, Any]]:
        """The failures so far, by process."""
        return self._read("failures")

    def _write(self, part: str, process: str, facts: Mapping[str, Any]) -> None:
        target = self._file(part, process)
        temporary = target.with_name(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({"process": process, **facts}), encoding="utf-8")
        temporary.replace(target)

    def _read(self, part: str) -> dict[str, dict[str, Any]]:
        found = {}
        for file in sorted((self.path / part).glob("[!.]*")):
            facts = json.loads(file.read_text(encoding="utf-8"))
            found[str(facts["process"])] = facts
        return found

    def _file(self, part: str, process: str) -> Path:
        return self.path / part / process.replace(":", "-").replace("/", "-")

    # Progress

    def open_progress(self, process: str) -> ProgressFile:
        """The calling process's own counters."""
        return ProgressFile(self._file("progress", process))

    def progress(self, process: str) -> Progress:
        """A process's counters; zeros for one that never captured."""
        try:
            return Progress(*_PROGRESS.unpack(self._file("progress", process).read_bytes()))
        except (FileNotFoundError, struct.error):
            return Progress(0, 0)

    # Limits of the whole run

    def claim(self, definition: str, axes: str, limit: int) -> str | None:
        """Take one of `limit` places for a definition and axes; None when all are taken.

        The claim of the first place ends in `-0`.
        """
        stem = text_sha256(f"{definition}\n{axes}")[:32]
        taken = add_shared(self.path / "claims" / stem, 1, limit)
        return None if taken is None else f"{stem}-{taken - 1}"

    def release(self, claim: str) -> None:
        """Give a place back."""
        add_shared(self.path / "claims" / claim.partition("-")[0], -1)

    def claimed(self) -> int:
        """Places taken, of all definitions and axes together."""
        return sum(_counted(file) for file in (self.path / "claims").iterdir())

    def reserve(self, nbytes: int, limit: int | None) -> bool:
        """Count `nbytes` against the run's allowance; False when it would exceed `limit`.

        A negative number gives bytes back.
        """
        if limit is None or nbytes == 0:
            return True
        return add_shared(self.path / "allowance", nbytes, limit) is not None

    def reserved(self) -> int:
        """Bytes counted against the allowance so far."""
        return _counted(self.path / "allowance")

    def free_bytes(self) -> int:
        """Disk space that capture may still use."""
        status = os.statvfs(self.path)
        return max(0, status.f_bavail * status.f_frsize - SPARE_BYTES)

    # Spool

    def spool(self, process: str, lines: str) -> None:
        """Append whole lines durably; only `process` itself writes its file."""
        file = self._file("spool", process)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            data = memoryview(lines.encode())
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def spooled(self) -> Iterator[dict[str, Any]]:
        """Every whole line of every spool; a torn last line was never acknowledged."""
        for file in sorted((self.path / "spool").glob("*")):
            for line in file.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)


def add_shared(counter: Path, n: int, limit: int | None = None) -> int | None:
    """Add to a counter that processes share in a file; the new count, or None beyond `limit`."""
    with forks.FLOCK:
        descriptor = os.open(counter, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            count = int.from_bytes(os.pread(descriptor, 8, 0), "little") + n
            if n > 0 and limit is not None and count > limit:
                return None
            os.pwrite(descriptor, max(0, count).to_bytes(8, "little"), 0)
            return count
        finally:
            os.close(descriptor)


def _counted(counter: Path) -> int:
    try:
        return int.from_bytes(counter.read_bytes(), "little")
    except FileNotFoundError:
        return 0


def abandoned(database: Path) -> list[ControlFolder]:
    """Control folders beside a database that earlier runs left behind (killed parents)."""
    parent = database.parent.absolute() / RUNS_FOLDER
    return [ControlFolder(path) for path in sorted(parent.glob("*")) if path.is_dir()]
