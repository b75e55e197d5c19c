"""The engine's worker processes: each is armed before the first request, drained after the last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from kclab.capture.control import ControlFolder, is_alive, process_key
from kclab.capture.orders import Orders
from kclab.core.errors import EngineFailed

STILL_SECONDS = 120.0
"""A worker that stores nothing for so long is stuck: one tensor takes less even on a slow disk."""
TICK_SECONDS = 0.1
SAYS_EVERY_SECONDS = 5.0
TITLE = "scheduler"
"""In the titles of SGLang's workers: `sglang::scheduler_TP0`, `sgl_diffusion::scheduler`."""

Family = Callable[[], Sequence[psutil.Process]]
Watch = Callable[[], None]
Progress = Callable[[str], None]


class Workers:
    """The workers of one served engine, as its process tree and the control folder tell."""

    def __init__(self, control: ControlFolder, family: Family):
        self._control = control
        self._family = family
        self._armed: dict[str, str] = {}
        """Process key -> how people know it, of those that must live until the end."""

    def require_armed(self, watch: Watch, seconds: float) -> int:
        """Wait until every worker has acknowledged the plan; how many processes did.

        Raises EngineFailed naming each one that did not.
        """
        deadline = time.monotonic() + seconds
        while missing := self._unarmed():
            self.require_no_failure()
            watch()
            if time.monotonic() > deadline:
                raise EngineFailed(_unarmed_words(missing))
            time.sleep(TICK_SECONDS)
        self.require_no_failure()
        self._armed = {process_key(p.pid): _title(p) for p in workers_among(self._family())}
        return len(self._control.workers())

    def _unarmed(self) -> list[psutil.Process]:
        told = self._control.workers()
        armed = {key for key, facts in told.items() if facts["state"] != "installing"}
        return [p for p in workers_among(self._family()) if process_key(p.pid) not in armed]

    def require_no_failure(self) -> None:
        """Raise EngineFailed where a process reported that it cannot capture."""
        for process, failure in self._control.failures().items():
            if failure.get("fatal"):
                raise EngineFailed(f"process {process}: {failure['message']}")

    def require_alive(self) -> None:
        """Raise EngineFailed naming a worker that died, even while its server still listens."""
        for key, title in self._armed.items():
            if not is_alive(key):
                raise EngineFailed(f"worker {title} (process {key}) died.")

    def drain(
        self, watch: Watch, seconds: float | None = None, told: Progress = lambda _: None
    ) -> None:
        """Let every living worker store all that it has, for as long as each gets on with it.

        `told` hears every few seconds what is left. Raises EngineFailed naming those that have not
        moved for STILL_SECONDS, with what waits in them, or that are not done after `seconds` in
        all.
        """
        Orders(self._control.path).drain()
        started = said = time.monotonic()
        moved: dict[str, tuple[int, float]] = {}
        while undrained := self._undrained():
            watch()
            now = time.monotonic()
            if now - said > SAYS_EVERY_SECONDS:
                said = now
                told(self._pending_words(undrained))
            for process in undrained:
                done = self._control.progress(process).moved
                if process not in moved or moved[process][0] != done:
                    moved[process] = (done, now)
            if seconds is not None and now - started > seconds:
                raise EngineFailed(self._undrained_words(undrained, "is not done", seconds))
            stuck = [p for p in undrained if now - moved[p][1] > STILL_SECONDS]
            if stuck:
                raise EngineFailed(self._undrained_words(stuck, "stored nothing", STILL_SECONDS))
            time.sleep(TICK_SECONDS)

    def _pending_words(self, processes: Sequence[str]) -> str:
        known = [self._control.progress(process) for process in processes]
        handed, pending = sum(p.handed for p in known), sum(p.pending for p in known)
        return f"the workers store what they copied: {pending} of {handed} captures are left"

    def try_drain(self, seconds: float) -> None:
        """After a failure: let whoever can still store what it has, and do not insist."""
        with contextlib.suppress(EngineFailed):
            self.drain(lambda: None, seconds)

    def _undrained(self) -> list[str]:
        told = self._control.workers()
        return [key for key, facts in told.items() if facts["state"] != "drained" and is_alive(key)]

    def _undrained_words(self, processes: Sequence[str], what: str, seconds: float) -> str:
        named = []
        for process in processes:
            progress = self._control.progress(process)
            title = self._armed.get(process, "worker")
            named.append(
                f"{title} (process {process}), {progress.pending} of {progress.handed} captures "
                "pending"
            )
        return f"not drained, {what} for {seconds:g} seconds: {'; '.join(named)}."


def workers_among(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes that compute: those titled as schedulers, else all that have torch loaded."""
    computing = [process for process in family if _has_torch(process.pid)]
    titled = [process for process in computing if TITLE in _title(process)]
    return titled or computing


def _has_torch(pid: int) -> bool:
    try:
        return b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def _title(process: psutil.Process) -> str:
    """A worker's own title, or the beginning of its command line."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()[:80] or process.name()
    return "?"


def _unarmed_words(missing: Sequence[psutil.Process]) -> str:
    named = "; ".join(f"{_title(p)} (process {p.pid}{_why(p)})" for p in missing)
    return (
        f"worker without kclab's plugin: {named}. Nothing was sent. Install kclab in the engine's "
        "own environment, and let SGLANG_PLUGINS, if it is set, contain kclab."
    )


def _why(process: psutil.Process) -> str:
    # A worker that gives itself a title overwrites what shows of its environment.
    for holder in (process, *process.parents()[:2]):
        with contextlib.suppress(psutil.Error):
            chosen = holder.environ().get("SGLANG_PLUGINS")
            if chosen:
                return f", SGLANG_PLUGINS={chosen}"
    return ""
