"""Killing a command at a random moment, and what must hold afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil

from kclab.core.errors import DatabaseMissing, DatabaseOutdated
from kclab.db.check import check
from kclab.db.runs import effective_status
from kclab.db.store import Store

KCLAB = (sys.executable, "-m", "kclab")
POLL_SECONDS = 0.01

ACKNOWLEDGED = {
    "workload": "SELECT uuid FROM workload",
    "capture": "SELECT uuid FROM capture",
    "replay": "SELECT run_id || '/' || id || '/' || status FROM replay",
    "run": "SELECT uuid FROM run",
}
"""What others can see is acknowledged: it must be there ever after."""

Rows = Mapping[str, frozenset[str]]


def visible(store: Store) -> Rows:
    """The rows that a reader sees now."""
    try:
        with closing(store.read()) as connection:
            return {
                name: frozenset(row[0] for row in connection.execute(query))
                for name, query in ACKNOWLEDGED.items()
            }
    except (DatabaseMissing, DatabaseOutdated):  # its maker was killed before it had a table
        return dict.fromkeys(ACKNOWLEDGED, frozenset())


def started(argv: Sequence[object], **options: object) -> subprocess.Popen[bytes]:
    """A command in a process group of its own, its output thrown away."""
    words = [str(word) for word in argv]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, start_new_session=True, **{**quiet, **options})  # type: ignore[call-overload, no-any-return]


def duration(argv: Sequence[object]) -> float:
    """Seconds that a command takes when nobody kills it; it must succeed."""
    start = time.monotonic()
    done = subprocess.run([str(w) for w in argv], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - start


class Trial:
    """One command, watched by a reader, and killed."""

    def __init__(self, store: Store, argv: Sequence[object]) -> None:
        self.store = store
        self.before = visible(store)
        self.acknowledged = self.before
        self.process = started(argv)

    def watch(self, seconds: float) -> bool:
        """Look on for so long; False when the command ended by itself before."""
        return self._watch(lambda: False, seconds)

    def watch_until_it_writes(self, table: str, seconds: float) -> bool:
        """Look on until a new row of `table` can be seen; False when the command ended."""
        new = lambda: self.acknowledged[table] - self.before[table]  # noqa: E731  (two words)
        return self._watch(new, seconds)

    def _watch(self, enough: Callable[[], object], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not enough():
            if self.process.poll() is not None:
                return False
            self.acknowledged = visible(self.store)
            time.sleep(POLL_SECONDS)
        return True

    def kill(self, victim: str = "all") -> None:
        """SIGKILL `all` processes at once, or first the `parent` or its `children` alone."""
        family = self._family()
        if victim == "parent":
            os.kill(self.process.pid, signal.SIGKILL)
        elif victim == "children":
            for child in family:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        if victim != "all":
            psutil.wait_procs([*family], timeout=10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        psutil.wait_procs(family, timeout=10)

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def require_sound(self) -> None:
        """The store is whole, nothing that could be seen is lost, and no run seems alive."""
        after = visible(self.store)
        for name, rows in self.acknowledged.items():
            assert rows <= after[name], f"lost {name}: {sorted(rows - after[name])[:3]}"
        if not after["run"]:
            return
        report = check(self.store)
        assert not report.database_damaged and not report.blobs_damaged, report.faults
        with closing(self.store.read()) as connection:
            runs = connection.execute("SELECT * FROM run").fetchall()
        assert {effective_status(row) for row in runs} <= {
            "stale",
            "passed",
            "failed",
            "error",
            "empty",
        }


def random_moment(rng: random.Random, trial: Trial, table: str, whole: float) -> bool:
    """Wait for a random moment: of the whole command, or near its first row, evenly.

    False when the command ended by itself.
    """
    if rng.random() < 0.5:
        return trial.watch(rng.uniform(0, whole))
    return trial.watch_until_it_writes(table, 4 * whole + 10) and trial.watch(rng.uniform(0, 0.4))


def copy_store(source: Store, folder: Path) -> Store:
    """Another store with the same rows and (hard-linked) blobs."""
    import shutil

    shutil.copytree(source.database.parent, folder, copy_function=os.link)
    database = folder / "kclab.db"
    content = database.read_bytes()
    database.unlink()
    database.write_bytes(content)
    for side in ("-wal", "-shm"):
        (folder / f"kclab.db{side}").unlink(missing_ok=True)
    return Store.at(database)
