"""Capture inside one process of the target program: from the plan to the last drain."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from pathlib import Path

from kclab.capture import context
from kclab.capture.adapters import load_adapters
from kclab.capture.control import ControlFolder, process_key
from kclab.capture.orders import ActiveRequest, drain_on_order
from kclab.capture.plan import PLAN_VARIABLE, CapturePlan
from kclab.capture.recorder import Recorder
from kclab.capture.tap import Tap
from kclab.core.catalog import load_catalog
from kclab.core.environment import package_version
from kclab.core.errors import DatabaseNewer, DatabaseOutdated, KclabError
from kclab.core.times import now_us
from kclab.db.connection import require_current

DRAIN_SECONDS = 120.0
"""How long an exiting process waits for a writer that gets nothing done; else, until it is done."""


@dataclass(slots=True)
class Session:
    """This process's armed capture."""

    plan: CapturePlan
    recorder: Recorder
    tap: Tap
    process: int
    """Its pid: a fork's child has the object, and another pid."""


class _Current:
    session: Session | None = None


def current_session() -> Session | None:
    """The session of this process, None where nothing captures."""
    return _Current.session


def start_from_environment() -> Session | None:
    """Start what KCLAB_CAPTURE_PLAN names; None where it names nothing, or an ended run."""
    path = os.environ.get(PLAN_VARIABLE)
    if not path or not Path(path).is_file():
        return None
    return start(CapturePlan.load(Path(path)))


def start(plan: CapturePlan) -> Session:
    """Arm capture in this process and acknowledge the plan; a second call changes nothing.

    Raises what an adapter, a definition or the store has against it.
    """
    if _Current.session is not None:
        return _Current.session
    control = ControlFolder(plan.control)
    control.write_worker(process_key(), {"state": "installing", "started_us": now_us()})
    _require_schema(plan.database)
    recorder = Recorder(plan)
    adapters = load_adapters(plan.adapters)
    tap = Tap(plan, recorder, adapters, load_catalog(plan.definition_folders))
    if plan.served:
        context.set_request_source(ActiveRequest(plan.control, _engine_facts(plan)))
    tap.arm()
    recorder.acknowledge(engine=_engine(plan))
    if plan.served:
        drain_on_order(plan.control, recorder, DRAIN_SECONDS)
    _Current.session = Session(plan, recorder, tap, os.getpid())
    _drain_at_every_exit(recorder, tap)
    return _Current.session


def _require_schema(database: Path) -> None:
    """Raise where this process has another kclab than the one that made the plan.

    What it cannot ask now, it may be able to write to later; the spool is there until then.
    """
    try:
        require_current(database)
    except (DatabaseNewer, DatabaseOutdated):
        raise
    except KclabError:
        return


def stop() -> None:
    """End this process's capture, so that another plan may start; nothing where none runs."""
    session, _Current.session = _Current.session, None
    if session is not None:
        session.tap.disarm()
        context.set_request_source(None)
        session.recorder.close(DRAIN_SECONDS)


def _engine(plan: CapturePlan) -> str:
    facts = _engine_facts(plan)
    return " ".join([str(plan.provenance.get("engine", "pytorch")), *facts.values()])


def _engine_facts(plan: CapturePlan) -> dict[str, str]:
    """The version of the engine that runs in this very process; its parent need not have it."""
    version = (
        package_version(str(plan.provenance.get("engine", "")).lower()) if plan.served else None
    )
    return {} if version is None else {"engine_version": version}


def _drain_at_every_exit(recorder: Recorder, tap: Tap) -> None:
    """Interpreter exit, multiprocessing children (which skip atexit), and forks."""
    from multiprocessing import parent_process, util

    def close() -> None:
        try:
            tap.disarm()  # says what it could not see
        finally:
            recorder.close(DRAIN_SECONDS)

    def in_child(_: object) -> None:
        # multiprocessing forgets finalizers at a child's start, so they are made there.
        util.Finalize(None, close, exitpriority=-100)

    atexit.register(close)
    os.register_at_fork(after_in_child=recorder.after_fork)
    util.register_after_fork(recorder, in_child)
    if parent_process() is not None:
        in_child(None)  # torch was imported only here
