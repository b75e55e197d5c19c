"""The server that a capture talks to: one of ours, or one that somebody else started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from kclab.capture.orders import attach
from kclab.core.errors import BadUsage, EngineFailed, EnvironmentLacking
from kclab.serving.command import HOST, engine_environment, ports_of
from kclab.serving.model import Model
from kclab.serving.options import ServeOptions
from kclab.serving.ports import listener, require_free
from kclab.serving.process import EngineProcess
from kclab.serving.requests import Client

NOTHING_ANSWERS = 5.0
"""Seconds to wait for a server that is said to run already."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server in use."""

    client: Client
    family: Callable[[], Sequence[psutil.Process]]
    """Its processes, as far as this machine shows them."""
    require_alive: Callable[[str], None]
    """Raises EngineFailed if it died; takes what was being done."""
    start_seconds: float
    """How long it may take to become healthy."""


@contextlib.contextmanager
def launched(
    model: Model, options: ServeOptions, command: Sequence[str], plan: Path, log: Path
) -> Iterator[Server]:
    """Start the engine; when the context ends, it and all that it started are gone.

    Raises EnvironmentLacking where a port is taken or the program cannot be started.
    """
    require_free(ports_of(model, options.port))
    environment = engine_environment(plan, options.omp_threads)
    with EngineProcess(command, environment, log, options.grace_seconds) as process:
        process.require_started()
        yield Server(
            Client(f"http://{HOST}:{options.port}", options.request_seconds),
            process.family,
            process.require_alive,
            options.start_seconds,
        )


@contextlib.contextmanager
def attached(options: ServeOptions, plan: Path) -> Iterator[Server]:
    """Use a server that runs already, and let it go on when the context ends."""
    assert options.attach is not None and options.attach_folder is not None
    first = attached_process(options.attach)

    def require_alive(doing: str) -> None:
        if first is not None and not first.is_running():
            raise EngineFailed(f"the server, process {first.pid}, ended {doing}.")

    with attach(options.attach_folder, plan):
        yield Server(
            Client(options.attach, options.request_seconds),
            lambda: family_of(first),
            require_alive,
            NOTHING_ANSWERS,
        )


def attached_process(url: str) -> psutil.Process | None:
    """The first process of the server that listens at a URL of this machine, if it shows."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise BadUsage(f"--attach {url}: write a URL, as http://127.0.0.1:30000.")
    process = listener(parts.port or (443 if parts.scheme == "https" else 80))
    while process is not None:
        parent = process.parent()
        if parent is None or not _is_sglang(parent):
            return process
        process = parent
    return None


def _is_sglang(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("sglang" in Path(word).name for word in process.cmdline()[:3])
    return False


def family_of(first: psutil.Process | None) -> list[psutil.Process]:
    """A process and its descendants, as far as they run."""
    with contextlib.suppress(psutil.Error):
        if first is not None:
            return [first, *first.children(recursive=True)]
    return []


def attached_command(url: str) -> list[str]:
    """The command line of the server at a URL, empty where it does not show."""
    with contextlib.suppress(psutil.Error):
        process = attached_process(url)
        return [] if process is None else process.cmdline()
    return []


def require_attachable(options: ServeOptions) -> None:
    """Raise EnvironmentLacking where nothing listens at `--attach`."""
    assert options.attach is not None
    if not Client(options.attach, NOTHING_ANSWERS).is_healthy():
        raise EnvironmentLacking(f"--attach {options.attach}: no healthy server answers there.")
