"""An engine as a process of ours: started, watched, and ended with all that it started.

The engine belongs to `kclab.serving.supervisor`, so nothing of it stays even when kclab is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from kclab.capture.program import exit_words
from kclab.core.errors import EngineFailed, EnvironmentLacking
from kclab.serving import supervisor

GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL."""
START_SECONDS = 30.0
"""For the supervisor's own start."""
LAST_LINES = 12
LINE_LENGTH = 400
LAST_BYTES = 16 << 10

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class EngineProcess:
    """A running engine; use it as a context, which ends the engine whatever happens."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        grace: float = GRACE_SECONDS,
    ):
        self.argv = tuple(argv)
        self.log = log
        """Its stdout and stderr, appended."""
        self._grace = grace
        self._messages: dict[str, Any] = {}
        self._buffer = b""
        self._supervisor = self._start(environment)

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        spec = json.dumps({"argv": self.argv, "log": str(self.log)})
        # -I: nothing in the engine's environment (PYTHONPATH, sitecustomize) reaches it.
        return subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def require_started(self) -> int:
        """The engine's first process; raises EnvironmentLacking where it could not be started."""
        self._wait_for("started", "failed", seconds=START_SECONDS)
        if "failed" in self._messages:
            raise EnvironmentLacking(str(self._messages["failed"]))
        if "started" not in self._messages:
            raise EngineFailed(f"{self.argv[0]}: its supervisor did not start; see {self.log}.")
        return int(self._messages["started"])

    def exit_code(self) -> int | None:
        """The first process's end, negative for a signal; None while it runs."""
        self._read(0)
        if self._supervisor.poll() is not None and "exited" not in self._messages:
            self._read(0)
            return int(self._messages.get("exited", -9))
        code = self._messages.get("exited")
        return None if code is None else int(code)

    def require_alive(self, doing: str) -> None:
        """Raise EngineFailed naming how the engine ended and what it said last."""
        code = self.exit_code()
        if code is not None:
            raise EngineFailed(
                f"the engine ended with {exit_words(code)} {doing}.{self.last_words()}"
            )

    def last_words(self) -> str:
        """The end of the log, as more lines of an error message."""
        lines = last_lines(self.log)
        if not lines:
            return f" It wrote nothing to {self.log}."
        return "\n".join(["", f"The last lines of {self.log}:", *(f"  {line}" for line in lines)])

    def family(self) -> list[psutil.Process]:
        """The engine's first process and all that descend from it, as far as they run."""
        with contextlib.suppress(psutil.NoSuchProcess):
            owner = psutil.Process(self._supervisor.pid)
            return owner.children(recursive=True)
        return []

    def end(self) -> int:
        """End the engine and everything that it started; its exit code, negative for a signal.

        Ctrl-C while this waits shortens the grace to nothing.
        """
        self._order(f"end {self._grace:g}\n")
        patience = self._grace + 2 * supervisor.KILL_SECONDS
        try:
            self._supervisor.wait(patience)
        except KeyboardInterrupt:
            self._order("end 0\n")
            self._supervisor.wait(2 * supervisor.KILL_SECONDS)
            raise
        finally:
            self._close()
        left = self._messages.get("ended")
        if left:
            raise EngineFailed(f"processes {left} of the engine could not be ended.")
        return int(self._messages.get("exited", 0) or 0)

    def _close(self) -> None:
        self._read(0)
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _order(self, line: str) -> None:
        stream = self._supervisor.stdin
        if stream is None or stream.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            stream.write(line.encode())
            stream.flush()

    def _wait_for(self, *names: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not any(name in self._messages for name in names):
            if time.monotonic() > deadline or not self._read(0.1):
                return

    def _read(self, seconds: float) -> bool:
        """Take the supervisor's messages; False once it has closed its end."""
        stream = self._supervisor.stdout
        if stream is None or stream.closed:
            return False
        while select.select([stream], [], [], seconds)[0]:
            data = os.read(stream.fileno(), 4096)
            if not data:
                return False
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._messages.update(json.loads(line))
            seconds = 0
        return True


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    """The last non-empty lines of a log, without colours."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = [_COLOUR.sub("", line).rstrip()[:LINE_LENGTH] for line in text.splitlines()]
    return [line for line in lines if line][-count:]
