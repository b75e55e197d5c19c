"""The end of a capture run: read in what its processes left, and judge what they did."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.capture.control import ControlFolder, abandoned, is_alive
from kclab.capture.entries import WorkerEntry, from_json, write_entries
from kclab.capture.plan import CapturePlan
from kclab.core.errors import BadUsage
from kclab.db.connection import writing
from kclab.db.runs import add_environment, effective_status

WAIT_SECONDS = 30.0
"""How long processes that outlive the program may take to drain."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How one process's part in a run ended."""

    process: str
    state: str
    """`installing`: never acknowledged. `armed`: never drained. `drained`: all is stored."""
    lost: int
    """Captures that were taken and have no rows."""
    running: bool

    def problem(self) -> str | None:
        """What is wrong with it, in a sentence; None for a clean end."""
        lost = f"{self.lost} capture{'s' if self.lost != 1 else ''}"
        if self.state == "drained":
            return f"process {self.process} could not store {lost}." if self.lost else None
        if self.state == "installing":
            return f"process {self.process} never acknowledged the plan."
        if self.running:
            return f"process {self.process} still runs and never drained its queue."
        if self.lost:
            return f"process {self.process} died with {lost} not yet stored."
        return None


def wait_for_workers(
    control: ControlFolder, *, seconds: float = WAIT_SECONDS, tick: Callable[[], None]
) -> None:
    """Wait until every process of the run has ended or drained; `tick` runs in between."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        workers = control.workers()
        if not any(w["state"] != "drained" and is_alive(p) for p, w in workers.items()):
            return
        tick()
        time.sleep(0.1)


def settle(connection: sqlite3.Connection, run_id: int, control: ControlFolder) -> list[WorkerEnd]:
    """Bring the spools and the workers' own words into the database; idempotent."""
    workers = control.workers()
    with writing(connection):
        write_entries(connection, run_id, map(from_json, control.spooled()))
        ends = [
            _end(connection, run_id, control, process, str(facts["state"]))
            for process, facts in workers.items()
        ]
        for end, facts in zip(ends, workers.values(), strict=True):
            _note_worker(connection, run_id, end, facts)
        _take_environment(connection, run_id, workers)
    return ends


def _end(
    connection: sqlite3.Connection, run_id: int, control: ControlFolder, process: str, state: str
) -> WorkerEnd:
    if is_alive(process):
        return WorkerEnd(process, state, 0, running=True)
    progress = control.progress(process)
    stored = connection.execute(
        "SELECT count(*) FROM capture WHERE run_id = ? AND json_extract(receipt, '$.process') = ?",
        (run_id, process),
    ).fetchone()[0]
    lost = max(0, progress.handed - progress.given_up - stored)
    return WorkerEnd(process, state, lost, running=False)


def _note_worker(
    connection: sqlite3.Connection, run_id: int, end: WorkerEnd, facts: Mapping[str, Any]
) -> None:
    if end.state == "installing":
        return
    known = connection.execute(
        "SELECT drained_us FROM capture_worker WHERE run_id = ? AND process = ?",
        (run_id, end.process),
    ).fetchone()
    if known is not None and end.problem() is None:
        return
    entry = WorkerEntry(
        end.process,
        facts["acknowledged_us"],
        facts["rank"],
        facts["engine"],
        None if known is None else known[0],
        end.problem(),
    )
    write_entries(connection, run_id, [entry])


def _take_environment(
    connection: sqlite3.Connection, run_id: int, workers: Mapping[str, Mapping[str, Any]]
) -> None:
    """The run's environment is its workers': they know the GPU, the parent never loads torch."""
    for facts in workers.values():
        if facts.get("environment"):
            environment = add_environment(connection, facts["environment"])
            connection.execute(
                "UPDATE run SET environment_id = ? WHERE id = ?", (environment, run_id)
            )
            return


def adopt_abandoned(connection: sqlite3.Connection, database: Path) -> int:
    """Settle the control folders of runs whose parent was killed; returns how many."""
    adopted = 0
    for control in abandoned(database):
        try:
            plan = CapturePlan.load(control.path / "plan.json")
        except BadUsage:
            continue  # its parent is just making it, or it is none of ours
        row = connection.execute("SELECT * FROM run WHERE id = ?", (plan.run_id,)).fetchone()
        if row is None or row["uuid"] != plan.run_uuid or effective_status(row) == "running":
            continue
        if any(is_alive(process) for process in control.workers()):
            continue
        settle(connection, plan.run_id, control)
        control.remove()
        adopted += 1
    return adopted
