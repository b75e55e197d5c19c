"""A fork at any moment leaves its child nothing to wait for."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kclab.capture import writer
from kclab.capture.control import ControlFolder
from kclab.db.store import Store
from tests.capture.recording import recording

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

SECONDS = 10
"""After which a child that waits for ever is killed."""


def _forked(child: Callable[[], bool]) -> int:
    """The exit code of a fork that runs `child`: 0 where it says so."""
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            signal.alarm(SECONDS)
            good = child()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_never_inherits_a_held_flock(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run")
    control.create()
    over = threading.Event()

    def count() -> None:
        while not over.is_set():
            control.reserve(1, 1 << 40)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        assert all(_forked(lambda: control.reserve(1, 1 << 40)) == 0 for _ in range(40))
    finally:
        over.set()
        counting.join()


def test_a_fork_waits_for_the_writers_transaction_and_takes_no_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, begun = [False], threading.Event()
    connections: list[sqlite3.Connection] = []
    write_entries = writer.write_entries

    def slow_entries(connection: sqlite3.Connection, *arguments: Any) -> None:
        inside[0] = True
        connections.append(connection)
        begun.set()
        write_entries(connection, *arguments)
        time.sleep(0.3)
        inside[0] = False

    def closed() -> bool:
        try:
            connections[-1].execute("SELECT 1")
        except sqlite3.ProgrammingError:
            return not inside[0]
        return False

    with recording(store) as session:
        monkeypatch.setattr(writer, "write_entries", slow_entries)
        session.gemm(step=0)
        assert begun.wait(SECONDS)
        assert _forked(closed) == 0
        session.gemm(step=1)
        session.drain()
        assert len(session.captures()) == 2, "the parent's writer opened the database again"
