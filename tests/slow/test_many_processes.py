"""Several processes on one store at once lose nothing and wait for each other."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from kclab.db.check import check
from kclab.db.garbage import find_garbage, remove_garbage
from kclab.db.store import Store
from tests.slow.test_kill import CALLS, KCLAB, WRITER, capture_command
from tests.slow.trials import visible

pytestmark = pytest.mark.slow


def test_four_captures_into_one_new_store_lose_nothing(tmp_path: Path) -> None:
    """They also meet at making the database."""
    store = Store.at(tmp_path / "kclab.db")
    commands = [[str(w) for w in capture_command(store, seed)] for seed in range(4)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    told = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, told
    assert len(visible(store)["capture"]) == 4 * CALLS
    assert check(store).faults == []
    with closing(store.read()) as connection:
        statuses = connection.execute("SELECT DISTINCT status FROM run").fetchall()
    assert [row[0] for row in statuses] == ["passed"]


def test_capture_replay_looking_and_cleaning_go_on_together(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "kclab.db")
    assert subprocess.run([str(w) for w in capture_command(store, 0)], check=False).returncode == 0
    base = [*KCLAB, "--db", str(store.database)]
    commands = [
        [str(w) for w in capture_command(store, 1)],
        [*base, "replay", "--jobs", "1"],
        [*base, "db", "check"],
    ]
    running = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    while any(process.poll() is None for process in running):
        remove_garbage(store, find_garbage(store, 30_000_000))
        visible(store)
        time.sleep(0.05)
    told = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 3, told
    assert len(visible(store)["capture"]) == 2 * CALLS
    assert check(store).faults == []


def test_a_cleaner_without_patience_beside_four_writers_breaks_nothing(store: Store) -> None:
    rng = random.Random(4)
    argv = [sys.executable, "-c", WRITER, str(store.database)]
    writers = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(4)]
    stop = threading.Event()
    threading.Timer(10, stop.set).start()
    while not stop.is_set():
        remove_garbage(store, find_garbage(store, 1_000_000))
        time.sleep(rng.uniform(0, 0.1))
    for writer in writers:
        writer.kill()
        writer.wait()
    report = check(store)
    assert not report.database_damaged and not report.blobs_damaged
