"""A run's row tells how it ended, whatever ended it; a killed one shows as stale."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.core.environment import boot_id
from kclab.core.errors import CheckFailed, EnvironmentLacking, NothingMatched
from kclab.core.times import now_us
from kclab.db import runs
from kclab.db.connection import writing
from kclab.db.runs import effective_status, run
from kclab.db.store import Store


def row_of(store: Store, uuid: str | None = None) -> dict[str, Any]:
    with closing(store.read()) as connection:
        rows = connection.execute("SELECT * FROM run ORDER BY id").fetchall()
    return dict(next(r for r in rows if uuid in (None, r["uuid"])))


def errors_of(store: Store) -> list[dict[str, Any]]:
    with closing(store.read()) as connection:
        return [dict(row) for row in connection.execute("SELECT * FROM error")]


def test_a_run_that_ends_well_has_passed(store: Store) -> None:
    with run(store, "capture", {"steps": [0, 4]}, mode="toy") as active:
        before = row_of(store)
        active.finish_as("passed", "12 captured")
    row = row_of(store)
    assert (before["status"], effective_status(before)) == ("running", "running")
    assert (row["status"], row["exit_code"], row["summary"]) == ("passed", 0, "12 captured")
    assert row["started_us"] <= row["heartbeat_us"] <= row["finished_us"] <= now_us()
    assert (row["command"], row["mode"], row["params"]) == ("capture", "toy", '{"steps": [0, 4]}')
    assert row["host"] == socket.gethostname() and row["pid"] == os.getpid()


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("empty", 3), ("error", 1)])
def test_a_run_may_say_how_it_ends(store: Store, status: str, code: int) -> None:
    with run(store, "replay", {}) as active:
        active.finish_as(status)
    row = row_of(store)
    assert (row["status"], row["exit_code"]) == (status, code)


@pytest.mark.parametrize(
    ("error", "status", "code", "traceback"),
    [
        (CheckFailed("3 of 12 differ"), "failed", 1, False),
        (NothingMatched("nothing matched"), "empty", 3, False),
        (EnvironmentLacking("no GPU"), "failed", 4, False),
        (KeyboardInterrupt(), "interrupted", 130, False),
        (MemoryError(), "failed", 4, True),
        (ZeroDivisionError("bug"), "error", 1, True),
        (SystemExit(3), "error", 1, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_ends_a_run_closes_its_row_and_goes_on(
    store: Store, error: BaseException, status: str, code: int, traceback: bool
) -> None:
    with pytest.raises(type(error)), run(store, "capture", {}):
        raise error
    row = row_of(store)
    assert (row["status"], row["exit_code"]) == (status, code)
    assert row["finished_us"] and row["summary"]
    (recorded,) = errors_of(store)
    assert recorded["kind"] == type(error).__name__
    assert bool(recorded["traceback"]) == traceback


def test_an_interrupted_run_says_so_in_a_word(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), run(store, "capture", {}):
        raise KeyboardInterrupt
    assert row_of(store)["summary"] == "interrupted"


@pytest.mark.parametrize("error", [CheckFailed("one\ntwo"), ValueError("one\ntwo")])
def test_a_list_of_runs_needs_one_line_of_an_error_and_the_error_has_all(
    store: Store, error: Exception
) -> None:
    with pytest.raises(type(error)), run(store, "capture", {}):
        raise error
    assert row_of(store)["summary"] == "one"
    assert [row["message"] for row in errors_of(store)] == ["one\ntwo"]


def test_an_open_transaction_is_rolled_back_before_the_row_is_closed(store: Store) -> None:
    with pytest.raises(CheckFailed), run(store, "capture", {}) as active:
        active.connection.execute("BEGIN IMMEDIATE")
        active.connection.execute("UPDATE run SET note = 'half'")
        raise CheckFailed("stop")
    assert row_of(store)["note"] is None
    assert row_of(store)["status"] == "failed"


def test_a_fault_while_closing_does_not_hide_the_first_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "50")
    with pytest.raises(CheckFailed, match="the first one") as raised, run(store, "x", {}):
        holder = sqlite3.connect(store.database, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        raise CheckFailed("the first one")
    holder.close()
    assert "could not be closed" in raised.value.__notes__[0]


def test_numbers_that_json_lacks_are_kept_as_words(store: Store) -> None:
    with run(store, "capture", {"scale": float("nan"), "path": Path("a/b")}):
        pass
    assert row_of(store)["params"] == '{"scale": "nan", "path": "a/b"}'


def test_a_run_makes_the_database_that_it_needs(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "new" / "kclab.db")
    with run(store, "capture", {}):
        pass
    assert row_of(store)["status"] == "passed"


def test_runs_of_one_machine_share_their_environment(store: Store) -> None:
    for _ in range(2):
        with run(store, "capture", {}):
            pass
    with closing(store.read()) as connection:
        assert connection.execute("SELECT count(*) FROM environment").fetchone()[0] == 1


def test_a_run_may_be_open_in_a_thread_that_gets_no_signals(store: Store) -> None:
    def work() -> None:
        with run(store, "capture", {}):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert row_of(store)["status"] == "passed"


def test_the_heart_beats(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "HEARTBEAT_SECONDS", 0.02)
    with run(store, "capture", {}):
        first = row_of(store)["heartbeat_us"]
        deadline = time.monotonic() + 10
        while row_of(store)["heartbeat_us"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_beat_that_finds_the_database_busy_is_missed_and_the_next_one_comes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "20")
    with run(store, "capture", {}) as active:
        active.connection.execute("BEGIN IMMEDIATE")
        time.sleep(0.2)
        active.connection.execute("ROLLBACK")
        first = row_of(store)["heartbeat_us"]
        deadline = time.monotonic() + 10
        while row_of(store)["heartbeat_us"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_signals_are_left_as_they_were(store: Store) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with run(store, "capture", {}):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


PROGRAM = """
import signal, sys, time; from pathlib import Path
from kclab.db.runs import run
from kclab.db.store import Store
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may ignore it
with run(Store.at(Path(sys.argv[1])), "capture", {}) as active:
    print(active.uuid, flush=True)
    time.sleep(60)
"""


def end_by(store: Store, number: signal.Signals) -> tuple[str, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(store.database)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        uuid = process.stdout.readline().strip()
    assert effective_status(row_of(store, uuid)) == "running"
    process.send_signal(number)
    return uuid, process.wait(timeout=30)


def test_a_killed_run_is_stale_at_once(store: Store) -> None:
    uuid, _ = end_by(store, signal.SIGKILL)
    row = row_of(store, uuid)
    assert row["status"] == "running"
    assert effective_status(row) == "stale"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_run_that_a_signal_ends_is_interrupted(store: Store, name: str) -> None:
    uuid, _ = end_by(store, signal.Signals[name])
    row = row_of(store, uuid)
    assert (row["status"], row["exit_code"]) == ("interrupted", 130)


ELSEWHERE = {"host": "elsewhere"}
SILENT_US = 3_600_000_000


@pytest.mark.parametrize(
    ("changes", "silent_us", "status"),
    [
        ({}, 0, "running"),
        ({}, SILENT_US, "running"),
        ({"process_started_us": 1}, 0, "stale"),
        ({"pid": 2**22 + 1}, 0, "stale"),
        (ELSEWHERE, 0, "running"),
        (ELSEWHERE, SILENT_US, "stale"),
        ({"boot_id": "an earlier boot"}, SILENT_US, "stale"),
        ({"boot_id": "another container"}, 0, "running"),
        ({"boot_id": None}, 0, "running"),
        ({"boot_id": None}, SILENT_US, "stale"),
        ({"status": "passed", "pid": 2**22 + 1}, SILENT_US, "passed"),
        ({"status": "failed"}, 0, "failed"),
    ],
    ids=[
        "alive",
        "alive, too busy to beat",
        "pid recycled",
        "process gone",
        "other host, beating",
        "other host, silent",
        "rebooted",
        "pids not visible, beating",
        "boot unknown, beating",
        "boot unknown, silent",
        "ended",
        "failed",
    ],
)
def test_who_is_alive(changes: Mapping[str, Any], silent_us: int, status: str) -> None:
    row = {
        "status": "running",
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "process_started_us": runs.process_started_us(os.getpid()),
        "heartbeat_us": now_us() - silent_us,
    }
    assert effective_status({**row, **changes}) == status


def test_an_owner_may_still_close_a_run_that_looked_stale(store: Store) -> None:
    with run(store, "capture", {}) as active:
        with writing(active.connection):
            active.connection.execute("UPDATE run SET heartbeat_us = 1, host = 'elsewhere'")
        assert effective_status(row_of(store)) == "stale"
    assert effective_status(row_of(store)) == "passed"


def test_the_commit_of_the_working_folder_is_noted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (repository / "file").write_text("1")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "file"], check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "one"], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["git", *identity, "tag", "v1-dirty"], check=True)
    with run(store, "capture", {}):
        pass
    (repository / "file").write_text("2")
    with run(store, "capture", {}):
        pass
    with closing(store.read()) as connection:
        found = connection.execute("SELECT git_commit, git_dirty FROM run ORDER BY id").fetchall()
    assert [tuple(row) for row in found] == [(head, 0), (head, 1)]


def test_outside_a_checkout_there_is_no_commit(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with run(store, "capture", {}):
        pass
    row = row_of(store)
    assert (row["git_commit"], row["git_dirty"]) == (None, None)
