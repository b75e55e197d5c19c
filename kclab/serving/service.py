"""`capture serve`: start an engine, ask it, capture what its workers compute, replay that.

arm -> every worker acknowledges -> requests, one at a time -> every worker drains
    -> the engine ends -> what came is judged -> replay
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from kclab.capture.control import ControlFolder, is_alive
from kclab.capture.orders import Orders
from kclab.capture.plan import CapturePlan
from kclab.capture.service import (
    CaptureSummary,
    conclude,
    label_run,
    make_plan,
    require_space,
    summary_line,
)
from kclab.capture.settle import adopt_abandoned, settle
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store
from kclab.replay import Options as ReplayOptions
from kclab.replay import ReplaySummary, Selection, replay
from kclab.serving.command import server_command
from kclab.serving.exchange import Answer, Exchanges
from kclab.serving.files import run_folder
from kclab.serving.job import Job, prepare, provenance
from kclab.serving.options import ServeOptions
from kclab.serving.server import (
    Server,
    attached,
    attached_command,
    launched,
    require_attachable,
)
from kclab.serving.workers import Workers

Progress = Callable[[str], None]
"""Takes one line for the person who waits."""

LOG = "server.log"
ARM_SECONDS = 30.0
"""For the workers to acknowledge, after the server is healthy."""
FAILED_DRAIN_SECONDS = 5.0
"""For the workers' queues when something went wrong."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request and what came back."""

    request_id: str
    seconds: float
    outputs: int


@dataclass(slots=True)
class ServeSummary:
    """What a serving capture brought."""

    capture: CaptureSummary
    requests: list[Served]
    log: Path | None
    """The engine's own output; None for an attached server."""
    replayed: ReplaySummary | None = field(default=None)
    """None without captures, or where it was not wanted."""


def capture_serve(
    store: Store, options: ServeOptions, progress: Progress = lambda line: None
) -> ServeSummary:
    """Serve a model, send it the cases, capture and replay.

    Raises BadUsage before anything starts. An engine that dies, does not get ready, or answers
    wrongly raises EngineFailed: the run's row says so, and keeps what was captured until then.
    """
    job = prepare(options)
    with run(store, "capture", job.params, mode="serve") as active:
        adopt_abandoned(active.connection, store.database)
        label_run(active, job.capture)
        with _control_folder(store, active) as control:
            plan = _plan(store, job, active, control)
            progress(f"capturing into {store.database}, run {active.uuid}")
            served = _serve(store, job, active, plan, progress)
            capture = conclude(active, control, plan, 0)
        active.finish_as(capture.status, summary_line(capture))
    log = None if options.attach else run_folder(store, active.uuid) / LOG
    summary = ServeSummary(capture, served, log)
    if options.replay and capture.captures:
        summary.replayed = _replay(store, active.uuid, options.device, progress)
    return summary


@contextmanager
def _control_folder(store: Store, active: ActiveRun) -> Iterator[ControlFolder]:
    control = ControlFolder.of(store.database, active.uuid)
    control.create()
    try:
        require_space(control)
        yield control
    finally:
        # What still has captures to store may yet spool; the next run adopts the folder then.
        undone = [p for p, facts in control.workers().items() if facts["state"] != "drained"]
        if not any(is_alive(process) for process in undone):
            control.remove()


def _plan(store: Store, job: Job, active: ActiveRun, control: ControlFolder) -> CapturePlan:
    options = job.options
    if options.attach is None:
        command = server_command(job.model, options, control.path)
    else:
        require_attachable(options)
        command = attached_command(options.attach)
    capture = replace(job.capture, provenance=provenance(job, command))
    return replace(make_plan(store, capture, command, active, control), served=True)


@contextmanager
def _server(store: Store, job: Job, active: ActiveRun, plan: CapturePlan) -> Iterator[Server]:
    path = plan.save()
    if job.options.attach is not None:
        with attached(job.options, path) as server:
            yield server
        return
    log = run_folder(store, active.uuid) / LOG
    command = plan.provenance["server_command"]
    with launched(job.model, job.options, command, path, log) as server:
        yield server


def _serve(
    store: Store, job: Job, active: ActiveRun, plan: CapturePlan, progress: Progress
) -> list[Served]:
    """Everything between starting the server and its end."""
    control = ControlFolder(plan.control)
    try:
        with _server(store, job, active, plan) as server:
            workers = Workers(control, server.family)
            try:
                _get_ready(server, workers, progress)
                served = _ask_all(store, job, active, server, workers, progress)
                watch = _watch(server, workers, "while its workers drained")
                workers.drain(watch, told=progress)
            except BaseException:
                workers.try_drain(FAILED_DRAIN_SECONDS)
                raise
            progress("all workers have drained; ending the engine")
    except BaseException as error:
        settle(active.connection, active.id, control)
        # The log's last lines stay with the error's row.
        active.summary = str(error).partition("\n")[0] or type(error).__name__
        raise
    return served


def _get_ready(server: Server, workers: Workers, progress: Progress) -> None:
    started = time.monotonic()
    progress("waiting for the engine")
    watch = _watch(server, workers, "before it was ready")
    server.client.wait_until_healthy(server.start_seconds, watch)
    progress(f"ready after {time.monotonic() - started:.1f} s")
    armed = workers.require_armed(watch, ARM_SECONDS)
    progress(f"{armed} processes armed")


def _watch(server: Server, workers: Workers, doing: str) -> Callable[[], None]:
    def watch() -> None:
        server.require_alive(doing)
        workers.require_no_failure()
        workers.require_alive()

    return watch


def _ask_all(
    store: Store,
    job: Job,
    active: ActiveRun,
    server: Server,
    workers: Workers,
    progress: Progress,
) -> list[Served]:
    exchanges = Exchanges(
        store,
        active.connection,
        active.id,
        server.client,
        job.served_name,
        job.inference_steps,
        job.model.architecture,
    )
    orders = Orders(ControlFolder.of(store.database, active.uuid).path)
    served = []
    for number, case in enumerate(job.cases, 1):
        progress(f"asking {case.request_id} ({number} of {len(job.cases)})")
        started = time.monotonic()
        asked = exchanges.begin(case)
        watch = _watch(server, workers, f"while it answered {asked.request_id}")
        activate = partial(
            orders.activate, asked.request_id, asked.told, asked.facts, asked.started_us
        )
        try:
            answer: Answer = exchanges.finish(asked, watch, activate)
        finally:
            orders.deactivate()
        served.append(Served(asked.request_id, time.monotonic() - started, len(answer.outputs)))
        progress(f"{asked.request_id} answered after {served[-1].seconds:.1f} s")
    return served


def _replay(store: Store, run_uuid: str, device: str, progress: Progress) -> ReplaySummary:
    progress("replaying")
    return replay(
        store,
        Selection(run=run_uuid),
        ReplayOptions(device=device),
        lambda done, total, _: progress(f"replayed {done} of {total}"),
    )
