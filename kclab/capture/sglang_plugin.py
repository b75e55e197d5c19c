"""SGLang's own way to reach its processes: entry points that it calls in every worker.

`sglang.srt.plugins` and `sglang.multimodal_gen.plugins` name `load`. Two environment variables
decide what it does; without either, nothing, at no cost:

- KCLAB_CAPTURE_PLAN: the plan of `kclab capture serve`, which started the server;
- KCLAB_ATTACH: a folder in which `kclab capture serve --attach` will leave a plan some time later.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from kclab.capture.plan import PLAN_VARIABLE

ATTACH_VARIABLE = "KCLAB_ATTACH"
ARMED_TICK_SECONDS = 0.5
"""Seldom: this looks into a file and a process, on a thread beside the engine's work."""


def load() -> None:
    """Arm capture in this process, or get ready to be asked for it. Never raises."""
    if os.environ.get(PLAN_VARIABLE):
        _arm(Path(os.environ[PLAN_VARIABLE]))
    elif os.environ.get(ATTACH_VARIABLE):
        folder = Path(os.environ[ATTACH_VARIABLE])
        name = "kclab-attach"
        if not any(thread.name == name for thread in threading.enumerate()):
            threading.Thread(target=_follow, args=(folder,), daemon=True, name=name).start()


def _arm(plan: Path) -> None:
    """Start a plan's capture; what goes wrong is told to the run, which then fails."""
    from kclab.capture.control import ControlFolder, process_key
    from kclab.capture.plan import CapturePlan
    from kclab.capture.session import start

    if not plan.is_file():
        return  # the run is over
    try:
        start(CapturePlan.load(plan))
    except Exception as error:  # SGLang would only log it
        import traceback

        message = f"capture could not be installed: {type(error).__name__}: {error}"
        # The plan lies in its run's control folder.
        control = ControlFolder(plan.parent)
        control.fail(process_key(), message, traceback.format_exc(), fatal=True)
        sys.stderr.write(f"kclab: process {os.getpid()}: {message}\n")


def _follow(folder: Path) -> None:
    """Be armed while the folder names a plan and the kclab that left it lives."""
    from kclab.capture.orders import attached_plan, wait_for

    while True:
        _serve(folder, wait_for(lambda: attached_plan(folder)))


def _serve(folder: Path, plan: Path) -> None:
    from kclab.capture.orders import attached_plan, wait_for
    from kclab.capture.session import stop

    _arm(plan)
    wait_for(lambda: attached_plan(folder) != plan, ARMED_TICK_SECONDS)
    stop()
