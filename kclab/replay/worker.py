"""The worker process: `python -m kclab.replay.worker SOCKET FOLDER DEVICE THREADS`.

Reads tasks from the inherited socket, answers each with one line, and ends when the socket does.
Whatever a reference prints goes to the pipe that stands for stdout and stderr; a marker after
each task tells the parent whose output it was.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from kclab.replay.noise import marker

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the parent closes the socket."""
    descriptor, folder, device, threads = arguments
    _die_with_parent()
    faulthandler.enable()
    # The parent asks where a reference hangs before it kills the process.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(descriptor))
    noise = os.dup(1)
    greeting = _greeting(device, int(threads))
    channel.sendall(json.dumps(greeting).encode() + b"\n")
    if greeting.get("problem"):
        return 0
    return _serve(channel, noise, Path(folder), greeting["device"])


def _serve(channel: socket.socket, noise: int, folder: Path, device: str) -> int:
    from kclab.replay.judge import Judge
    from kclab.replay.task import decode_task, encode_outcome

    judge = Judge(folder, device)
    for line in channel.makefile("rb"):
        task = decode_task(line)
        outcome = judge.judge(task)
        poisoned = outcome.status == "error" and not _device_answers(device)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(noise, marker(task.id))
        channel.sendall(encode_outcome(outcome, retired=poisoned))
        if poisoned:
            return 0
    return 0


def _greeting(device: str, threads: int) -> dict[str, Any]:
    """What this worker runs on, or the problem that keeps it from running."""
    import torch

    from kclab.core.environment import environment_facts

    torch.set_num_threads(threads)
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if device in ("auto", "cuda"):
        device = "cuda:0" if gpus else ("cpu" if device == "auto" else device)
    problem = _device_problem(device, gpus)
    if device.startswith("cuda") and not problem:
        torch.cuda.set_device(device)
    return {
        "device": device,
        "gpus": gpus,
        "problem": problem,
        "torch": torch.__version__,
        "facts": environment_facts(),
    }


def _device_problem(device: str, gpus: int) -> str | None:
    if device == "cpu":
        return None
    if not gpus:
        return "there is no usable CUDA device here; choose --device cpu"
    if int(device.partition(":")[2]) >= gpus:
        return f"there is no {device}; this machine has {gpus} CUDA devices, from cuda:0"
    return None


def _device_answers(device: str) -> bool:
    """False when a GPU context is broken: nothing but a new process mends it."""
    import torch

    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _die_with_parent() -> None:
    """On Linux, die when the parent does, even while a reference hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
