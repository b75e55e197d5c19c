"""The life of a run row: start, heartbeat, end; and telling a killed run from a living one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.environment import boot_id, environment_facts, process_started_us
from kclab.core.errors import ExitCode, KclabError, NothingMatched
from kclab.core.memory import is_out_of_memory
from kclab.core.times import now_us, uuid7
from kclab.core.urls import without_credentials
from kclab.db.connection import connect_write, writing
from kclab.db.rows import add_error
from kclab.db.store import Store, open_for_writing
from kclab.db.values import to_json

HEARTBEAT_SECONDS = 10.0
STALE_AFTER_US = 60_000_000
"""Without a heartbeat for this long, where its process cannot be looked up, a run is stale."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised in the main thread so that a run ends as one that Ctrl-C ended."""


class ActiveRun:
    """A run in progress: its row, a write connection, and the outcome that it will end with."""

    def __init__(self, store: Store, connection: sqlite3.Connection, run_id: int, uuid: str):
        self.store = store
        self.connection = connection
        self.id = run_id
        self.uuid = uuid
        self.status = "passed"
        self.summary: str | None = None
        self.exit_code: int | None = None

    def finish_as(
        self, status: str, summary: str | None = None, exit_code: int | None = None
    ) -> None:
        """Say how the run is to end; `passed` unless called.

        `exit_code` is for a status with several: `failed` is 1, but 4 where the machine lacks
        what the run needs.
        """
        self.status = status
        self.exit_code = exit_code
        self.summary = summary if summary is not None else self.summary


@contextmanager
def run(
    store: Store,
    command: str,
    params: Mapping[str, Any],
    *,
    mode: str | None = None,
    parent_id: int | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Iterator[ActiveRun]:
    """Open a run row (making or upgrading the database first), keep its heart beating, close it.

    An exception closes the row as failed, empty, interrupted or error, and goes on. SIGTERM and
    SIGHUP become such an exception. An open transaction is rolled back before the row is closed.
    """
    open_for_writing(store)
    connection = connect_write(store.database)
    with contextlib.closing(connection), _termination_raises():
        run_id, uuid = _insert(connection, command, mode, params, parent_id, environment)
        active = ActiveRun(store, connection, run_id, uuid)
        with _heart(store.database, run_id):
            try:
                yield active
            except BaseException as error:
                _close_failed(connection, active, error)
                raise
            code = active.exit_code
            code = _exit_code(active.status) if code is None else int(code)
            _close(connection, active, active.status, code)


@contextmanager
def _termination_raises() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise Terminated, where nobody else handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, _raise_terminated)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    raise Terminated(f"ended by {signal.Signals(number).name}")


@contextmanager
def _heart(database: Path, run_id: int) -> Iterator[None]:
    stop = threading.Event()
    beat = threading.Thread(
        target=_heartbeat, args=(database, run_id, stop), daemon=True, name="kclab-heartbeat"
    )
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join(timeout=1)


def _insert(
    connection: sqlite3.Connection,
    command: str,
    mode: str | None,
    params: Mapping[str, Any],
    parent_id: int | None,
    environment: Mapping[str, Any] | None,
) -> tuple[int, str]:
    facts = dict(environment if environment is not None else environment_facts())
    commit, dirty = _git_state()
    uuid, at = uuid7(), now_us()
    with writing(connection):
        environment_id = add_environment(connection, facts)
        cursor = connection.execute(
            "INSERT INTO run(uuid, command, mode, status, started_us, heartbeat_us, pid,"
            " process_started_us, boot_id, environment_id, parent_id, git_commit, git_dirty, host,"
            " argv, params) VALUES (?,?,?,'running',?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                uuid,
                command,
                mode,
                at,
                at,
                os.getpid(),
                process_started_us(os.getpid()),
                boot_id(),
                environment_id,
                parent_id,
                commit,
                dirty,
                socket.gethostname(),
                json.dumps([without_credentials(word) for word in sys.argv]),
                to_json(dict(params)),
            ),
        )
    return int(cursor.lastrowid or 0), uuid


def add_environment(connection: sqlite3.Connection, facts: Mapping[str, Any]) -> int:
    """The id of the environment with exactly these stable facts."""
    text = canonical_json(facts)
    sha256 = text_sha256(text)
    connection.execute(
        "INSERT INTO environment(sha256, os, python, torch, gpu, capability, driver, cuda,"
        " cublaslt, comfy_kitchen, facts) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(sha256) DO NOTHING",
        (
            sha256,
            facts.get("os", ""),
            facts.get("python", ""),
            facts.get("torch"),
            facts.get("gpu"),
            facts.get("capability"),
            facts.get("driver"),
            facts.get("cuda"),
            facts.get("cublaslt"),
            facts.get("comfy_kitchen"),
            text,
        ),
    )
    row = connection.execute("SELECT id FROM environment WHERE sha256 = ?", (sha256,)).fetchone()
    return int(row[0])


def _heartbeat(database: Path, run_id: int, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            connection = connect_write(database)
            try:
                connection.execute(
                    "UPDATE run SET heartbeat_us = ? WHERE id = ?", (now_us(), run_id)
                )
            finally:
                connection.close()
        except (sqlite3.Error, KclabError):
            continue  # a missed beat is harmless; the next one comes


def _close_failed(connection: sqlite3.Connection, active: ActiveRun, error: BaseException) -> None:
    """Record how the run ended; a fault in doing so must not hide the first one."""
    status, code = _outcome(error)
    message = str(error) or (
        "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
    )
    active.summary = active.summary or (
        error.summary if isinstance(error, KclabError) else message.partition("\n")[0]
    )
    expected = isinstance(error, KclabError | KeyboardInterrupt)
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with writing(connection):
            add_error(
                connection,
                active.id,
                "run",
                type(error).__name__,
                message,
                traceback=None if expected else "".join(traceback.format_exception(error)),
            )
            _close(connection, active, status, code)
    except (KclabError, sqlite3.Error) as second:
        error.add_note(f"its run row could not be closed either: {second}")


def _outcome(error: BaseException) -> tuple[str, int]:
    """(status, exit code) of a run that an exception ended."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", int(ExitCode.INTERRUPTED)
    if isinstance(error, NothingMatched):
        return "empty", int(error.exit_code)
    if isinstance(error, KclabError):
        return "failed", int(error.exit_code)
    if is_out_of_memory(error):
        return "failed", int(ExitCode.ENVIRONMENT)
    return "error", 1


def _close(connection: sqlite3.Connection, active: ActiveRun, status: str, code: int) -> None:
    at = now_us()
    with writing(connection):
        connection.execute(
            "UPDATE run SET status = ?, exit_code = ?, finished_us = ?, heartbeat_us = ?,"
            " summary = ? WHERE id = ?",
            (status, code, at, at, active.summary, active.id),
        )


def _exit_code(status: str) -> int:
    """What the command line exits with for a status that has one code only."""
    codes = {"passed": ExitCode.OK, "empty": ExitCode.NOTHING, "interrupted": ExitCode.INTERRUPTED}
    return int(codes.get(status, ExitCode.CHECK_FAILED))


def _git_state() -> tuple[str | None, int | None]:
    """(commit, whether tracked files differ) of the working folder; Nones outside a checkout."""
    describe = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40")
    try:
        done = subprocess.run(
            [*describe, "--exclude=*"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    commit, _, dirty = done.stdout.strip().partition("-")
    return commit, int(bool(dirty))


def effective_status(row: Mapping[str, Any], at_us: int | None = None) -> str:
    """A run row's status, with `running` turned into `stale` where its process is gone.

    Where the run's process could be seen from here (same host, boot and pid namespace) the
    process decides; elsewhere a heartbeat older than a minute does.
    """
    status = str(row["status"])
    if status != "running":
        return status
    if row["boot_id"] is not None and (row["host"], row["boot_id"]) == _this_machine():
        started = process_started_us(int(row["pid"]))
        alive = started is not None and row["process_started_us"] in (None, started)
        return "running" if alive else "stale"
    silent = (at_us or now_us()) - int(row["heartbeat_us"])
    return "stale" if silent > STALE_AFTER_US else "running"


def _this_machine() -> tuple[str, str | None]:
    return socket.gethostname(), boot_id()
