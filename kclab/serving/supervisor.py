"""The small process between kclab and an engine: it owns the engine, and outlives kclab's death.

Run as a file, `python -I supervisor.py SPEC`, where SPEC is JSON: `argv` and `log`. It starts the
engine in a session of its own and adopts what the engine leaves orphaned. One JSON object a line
goes to stdout: `{"started": pid}`, `{"failed": why}`, `{"exited": code}` as soon as the engine's
first process ends, and `{"ended": [pids]}` last, with what even SIGKILL could not end. On stdin
it takes `end SECONDS` (SIGTERM, then SIGKILL after so long). When stdin closes, kclab is gone, and
the engine is ended, too.

Nothing is ever looked for by name: signals go to the engine's own process group, whose number
stays reserved while its first process is not reaped, and to descendants of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK_SECONDS = 0.05
LEFTOVER_GRACE = 5.0
"""For what an engine that ended by itself left behind, and when kclab is gone."""
KILL_SECONDS = 10.0
"""How long killed processes may take to vanish (a process in a driver call ends after it)."""


def prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing happens, and orphans are not adopted."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def say(**message: Any) -> None:
    """Tell kclab, if it is still there."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class Orders:
    """What kclab says on stdin."""

    def __init__(self) -> None:
        self.gone = False
        self.grace: float | None = None
        """Seconds between SIGTERM and SIGKILL, once kclab has asked for the end."""
        self._buffer = b""

    def wait(self, seconds: float) -> None:
        """Take what comes within `seconds`."""
        if self.gone:
            time.sleep(seconds)
            return
        if not select.select([0], [], [], seconds)[0]:
            return
        data = os.read(0, 4096)
        if not data:
            self.gone, self.grace = True, min(LEFTOVER_GRACE, self.grace or LEFTOVER_GRACE)
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.grace = float(line.split()[1])


class Engine:
    """The engine's processes."""

    def __init__(self, argv: list[str], log: str):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._first = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                # Single-threaded here, so preexec_fn is safe. Should this process be killed, the
                # kernel kills the engine's first one.
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        finally:
            os.close(descriptor)
        self.pid = self._first.pid

    def exit_code(self) -> int | None:
        """The first process's end, negative for a signal; it stays unreaped."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self.pid, options)
            if ended is None:
                return None
            code = int(ended.si_status)
            return code if ended.si_code == os.CLD_EXITED else -code
        return self._first.returncode

    def left(self) -> list[psutil.Process]:
        """What still runs of the engine and its descendants."""
        alive = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
                elif process.pid != self.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
        return alive

    def signal(self, number: signal.Signals) -> None:
        """To the whole group at once, and to descendants that left it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for process in self.left():
            # psutil compares start times: a recycled pid is never signalled.
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) != self.pid:
                    process.send_signal(number)

    def end(self, orders: Orders, grace: float) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds, or sooner when kclab asks so."""
        self.signal(signal.SIGTERM)
        started = time.monotonic()
        while self.left() and time.monotonic() - started < min(grace, orders.grace or grace):
            orders.wait(TICK_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while self.left() and time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
            time.sleep(TICK_SECONDS)


def main(spec: dict[str, Any]) -> None:
    """Start the engine, wait for its end or for an order to end it, leave nothing behind."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # kclab decides, and its death closes the pipe. A handler, since the engine would inherit
        # an ignored signal.
        signal.signal(number, lambda *_: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        engine = Engine(spec["argv"], spec["log"])
    except OSError as error:
        say(failed=f"{spec['argv'][0]}: cannot be started ({error.strerror}).")
        return
    say(started=engine.pid)
    orders = Orders()
    while (code := engine.exit_code()) is None and orders.grace is None:
        orders.wait(TICK_SECONDS)
    if code is not None:
        say(exited=code)
    engine.end(orders, LEFTOVER_GRACE if orders.grace is None else orders.grace)
    if code is None:
        say(exited=engine.exit_code())
    say(ended=[process.pid for process in engine.left()])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
