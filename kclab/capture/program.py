"""The program that a capture run starts: its environment, and how it is ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from kclab.capture.plan import PLAN_VARIABLE
from kclab.core.errors import EnvironmentLacking

TICK_SECONDS = 0.2
GRACE_SECONDS = 10.0
"""Between asking a program to end, telling it to, and killing it."""


def bootstrap_environment(plan: Path) -> dict[str, str]:
    """This environment, with capture installed in every Python that starts in it."""
    bootstrap = str(Path(__file__).resolve().parent / "bootstrap")
    others = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry and entry != bootstrap
    ]
    return {
        **os.environ,
        PLAN_VARIABLE: str(plan),
        "PYTHONPATH": os.pathsep.join([bootstrap, *others]),
    }


def require_program(argv: Sequence[str]) -> None:
    """Raise EnvironmentLacking unless the command exists."""
    if shutil.which(argv[0]) is None:
        raise EnvironmentLacking(f"{argv[0]}: no such program; check the command after --.")


class Program:
    """A running child. It shares our terminal: its output passes through untouched."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]):
        try:
            self._child = subprocess.Popen(list(argv), env=dict(environment))
        except OSError as error:
            raise EnvironmentLacking(f"{argv[0]}: cannot be started ({error.strerror}).") from error

    def wait(self, tick: Callable[[], bool]) -> int:
        """The exit code, negative for a signal. Ends the program early when `tick` says so."""
        while True:
            try:
                return self._child.wait(TICK_SECONDS)
            except subprocess.TimeoutExpired:
                if not tick():
                    return self.end(signal.SIGTERM)

    def end(self, first: signal.Signals) -> int:
        """End the program and what it started: ask with `first`, then SIGTERM, then SIGKILL."""
        family = self._family()
        if first is not signal.SIGINT or not _terminal_told_it():
            self._tell(first)
        for then in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._child.wait(GRACE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                self._tell(then)
            except KeyboardInterrupt:  # asked twice: no more grace
                self._tell(signal.SIGKILL)
        code = self._child.wait()
        _end_orphans(family)
        return code

    def _tell(self, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(what)

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._child.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _end_orphans(family: list[psutil.Process]) -> None:
    # psutil compares start times, so a recycled pid is never signalled.
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _terminal_told_it() -> bool:
    """Whether Ctrl-C reached the whole foreground group, and so the child, already."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def exit_words(code: int) -> str:
    """`exit code 3`, or the signal's name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
