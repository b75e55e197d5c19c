"""The life of a run row: start, heartbeat, end; and telling a killed run from a living one."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.environment import boot_id, environment_facts, process_started_us
from kclab.core.errors import ExitCode, KclabError, NothingMatched
from kclab.core.times import now_us, uuid7
from kclab.db.connection import connect_write, writing
from kclab.db.rows import add_error
from kclab.db.store import Store, open_for_writing

HEARTBEAT_SECONDS = 10.0
STALE_AFTER_US = 60_000_000
"""Without a heartbeat for this long, and its process gone, a run is stale."""


class ActiveRun:
    """A run in progress: its row, a write connection, and the outcome that it will end with."""

    def __init__(self, store: Store, connection: sqlite3.Connection, run_id: int, uuid: str):
        self.store = store
        self.connection = connection
        self.id = run_id
        self.uuid = uuid
        self.status = "passed"
        self.summary: str | None = None

    def finish_as(self, status: str, summary: str | None = None) -> None:
        """Say how the run is to end; `passed` unless called."""
        self.status = status
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

    An exception closes the row as failed, empty, interrupted or error, and goes on.
    """
    open_for_writing(store)
    connection = connect_write(store.database)
    run_id, uuid = _insert(connection, command, mode, params, parent_id, environment)
    active = ActiveRun(store, connection, run_id, uuid)
    stop = threading.Event()
    beat = threading.Thread(
        target=_heartbeat, args=(store.database, run_id, stop), daemon=True, name="kclab-heartbeat"
    )
    beat.start()
    try:
        yield active
    except BaseException as error:
        _close_failed(connection, active, error)
        raise
    else:
        _close(connection, active, active.status, _exit_code(active.status))
    finally:
        stop.set()
        beat.join(timeout=1)
        connection.close()


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
                json.dumps(sys.argv),
                json.dumps(dict(params), default=str),
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
    if isinstance(error, KeyboardInterrupt):
        status, code = "interrupted", int(ExitCode.INTERRUPTED)
    elif isinstance(error, NothingMatched):
        status, code = "empty", int(error.exit_code)
    elif isinstance(error, KclabError):
        status, code = "failed", int(error.exit_code)
    else:
        status, code = "error", 1
    active.summary = active.summary or str(error) or type(error).__name__
    expected = isinstance(error, KclabError | KeyboardInterrupt)
    with writing(connection):
        add_error(
            connection,
            active.id,
            "run",
            type(error).__name__,
            str(error) or type(error).__name__,
            traceback=None if expected else traceback.format_exc(),
        )
        _close(connection, active, status, code)


def _close(connection: sqlite3.Connection, active: ActiveRun, status: str, code: int) -> None:
    at = now_us()
    with writing(connection):
        connection.execute(
            "UPDATE run SET status = ?, exit_code = ?, finished_us = ?, heartbeat_us = ?,"
            " summary = ? WHERE id = ?",
            (status, code, at, at, active.summary, active.id),
        )


def _exit_code(status: str) -> int:
    codes = {"passed": ExitCode.OK, "empty": ExitCode.NOTHING, "interrupted": ExitCode.INTERRUPTED}
    return int(codes.get(status, ExitCode.CHECK_FAILED))


def _git_state() -> tuple[str | None, int | None]:
    """(commit, whether tracked files differ) of the working folder; Nones outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.stdout.strip(), int(bool(status.stdout.strip()))


def effective_status(row: Mapping[str, Any], at_us: int | None = None) -> str:
    """A run row's status, with `running` turned into `stale` where its process is gone.

    On its own host the process decides; elsewhere a heartbeat older than a minute does.
    """
    status = str(row["status"])
    if status != "running":
        return status
    if row["host"] == socket.gethostname() and row["boot_id"] == boot_id():
        alive = process_started_us(int(row["pid"]))
        started = row["process_started_us"]
        return "running" if alive is not None and started in (None, alive) else "stale"
    silent = (at_us or now_us()) - int(row["heartbeat_us"])
    return "stale" if silent > STALE_AFTER_US else "running"
