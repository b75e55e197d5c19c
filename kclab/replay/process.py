"""One worker process as its parent sees it: its socket, its output, what it is working on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from kclab.replay.noise import NoiseReader
from kclab.replay.task import Task, encode_task

TRACE_SECONDS = 0.2
"""How long a hanging worker gets to say where it hangs."""


class WorkerProcess:
    """A started worker. It answers its tasks in the order it got them."""

    def __init__(self, folder: Path, device: str, threads: int) -> None:
        self.device = device
        self.greeting: dict[str, Any] | None = None
        """What it said when it was ready."""
        self.tasks: deque[Task] = deque()
        """Sent and not answered; the first is being worked on."""
        self.since = time.monotonic()
        """When it started, or last began a task."""
        self.quick = False
        """Its last task took so little that waiting for the next would show."""
        self.retired = False
        """It said that it ends of its own accord, its GPU being lost."""
        self.socket, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self.noise = NoiseReader(reader)
        command = [sys.executable, "-P", "-m", "kclab.replay.worker"]
        self.process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(folder), device, str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            pass_fds=(theirs.fileno(),),
            env=_environment(),
            start_new_session=True,
        )
        theirs.close()
        os.close(writer)
        self.socket.setblocking(False)
        self._received = bytearray()

    def send(self, task: Task) -> None:
        """Hand over a task; its clock starts when those before it are answered."""
        if not self.tasks:
            self.since = time.monotonic()
        self.tasks.append(task)
        # A task is a few KiB and few are under way, so the socket's buffer always has room;
        # a dead worker is found by `receive`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(encode_task(task))

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that are there now; None when the worker has hung up."""
        ended = False
        while True:
            try:
                data = self.socket.recv(1 << 18)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                ended = True
                break
            self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        messages = [json.loads(line) for line in lines]
        return None if ended and not messages else messages

    def answered(self) -> Task:
        """Note that the first task is done."""
        now = time.monotonic()
        self.quick = now - self.since < 0.05
        self.since = now
        return self.tasks.popleft()

    def stack(self) -> str:
        """Where a hanging worker hangs: its Python stacks, with what it printed last."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + TRACE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.02)
        return self.noise.rest()

    def how_it_ended(self) -> str:
        """Why a worker that hung up is gone: `left with exit code 3`."""
        try:
            return _in_words(self.process.wait(timeout=5))
        except subprocess.TimeoutExpired:
            return "closed its connection"

    def end(self) -> None:
        """Kill the worker and whatever it started, and let go of its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket.close()
        self.noise.close()


def _environment() -> dict[str, str]:
    """A worker's environment: the reference's own calls are not to be captured.

    Idle OpenMP threads sleep: spinning, they take small operators from other workers' cores
    (4,000 small GEMMs with two threads on two busy cores took 69 s spinning).
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KCLAB_CAPTURE")}
    return {"OMP_WAIT_POLICY": "PASSIVE", **kept}


def _in_words(code: int) -> str:
    """An exit status as `left with exit code 3` or `was killed by SIGSEGV`."""
    if code >= 0:
        return f"left with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
