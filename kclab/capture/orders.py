"""What the parent of a served engine tells its workers through the control folder.

    active               the request that is being served, while it is
    turn                 a number that grows with each change of `active`; workers map it
    drain                made when nothing more will be asked: every worker empties its queue

A server that somebody else started watches the folder KCLAB_ATTACH, where

    attached             names the plan, while a capture is attached

A served engine also works for others than kclab (health probes, warm-up): calls made while no
request is active belong to nobody, and are counted as such.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kclab.capture.context import Request
from kclab.capture.control import is_alive, process_key
from kclab.core.errors import EnvironmentLacking

if TYPE_CHECKING:
    from kclab.capture.recorder import Recorder

Found = TypeVar("Found")

ACTIVE = "active"
TURN = "turn"
TURN_BYTES = 8
ATTACHED = "attached"
DRAIN = "drain"
TICK_SECONDS = 0.1


class Orders:
    """The parent's side."""

    def __init__(self, control: Path):
        self._control = control

    def activate(
        self, request_id: str, payload: Mapping[str, Any], facts: Mapping[str, Any], at_us: int
    ) -> None:
        """From now on, what the workers compute belongs to this request."""
        temporary = self._control / f".{uuid.uuid4().hex}"
        request = {"id": request_id, "payload": payload, "facts": facts, "started_us": at_us}
        temporary.write_text(json.dumps(request), encoding="utf-8")
        temporary.replace(self._control / ACTIVE)
        self._next_turn()

    def deactivate(self) -> None:
        """No request is being served any more."""
        (self._control / ACTIVE).unlink(missing_ok=True)
        self._next_turn()

    def _next_turn(self) -> None:
        """Make the workers look at the file again."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self._control / TURN, os.O_RDWR | os.O_CLOEXEC)
            try:
                turn = int.from_bytes(os.pread(descriptor, TURN_BYTES, 0), "little") + 1
                os.pwrite(descriptor, turn.to_bytes(TURN_BYTES, "little"), 0)
            finally:
                os.close(descriptor)

    def drain(self) -> None:
        """Ask every worker to store what it has, and to confirm it."""
        (self._control / DRAIN).touch()


class ActiveRequest:
    """A worker's side: which request it works for now.

    It is asked at each step, selected or not. A look at the file takes a tenth of a millisecond
    when the step before has emptied the caches, so that only follows a change of the turn.
    """

    def __init__(self, control: Path, facts: Mapping[str, Any] | None = None):
        self._path = control / ACTIVE
        self._turns = _mapped(control / TURN)
        self._turn = b""
        """The turn that the request was looked up in."""
        self._facts = dict(facts or {})
        """What this process adds to each receipt."""
        self._stamp: tuple[int, int] | None = None
        self._request: Request | None = None

    def __call__(self) -> Request | None:
        """The active request; the same object while it stays active, so that its steps count."""
        if self._turns is None:
            return self._looked_up()
        turn = self._turns[:]
        if turn != self._turn:
            self._looked_up()
            self._turn = turn
        return self._request

    def _looked_up(self) -> Request | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp = self._request = None
            return None
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            self._request = self._read()
            self._stamp = stamp
        return self._request

    def _read(self) -> Request | None:
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        facts = {**self._facts, **told["facts"]}
        return Request(told["id"], told["payload"], told["started_us"], facts=facts)


def _mapped(file: Path) -> mmap.mmap | None:
    """A file's bytes as they change; None where there is no such file, or no mapping of it."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), TURN_BYTES, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None


def drain_on_order(control: Path, recorder: Recorder, seconds: float) -> None:
    """Watch for the order to drain, on a thread that ends once it is carried out."""

    def follow() -> None:
        wait_for(lambda: (control / DRAIN).exists() or not control.is_dir())
        with contextlib.suppress(FileNotFoundError):  # the run is over
            recorder.drain(seconds)

    threading.Thread(target=follow, daemon=True, name="kclab-orders").start()


@contextlib.contextmanager
def attach(folder: Path, plan: Path) -> Iterator[None]:
    """Let the server that watches `folder` capture by this plan, until the context ends.

    Raises EnvironmentLacking while another capture is attached; one that was killed does not count.
    """
    current = attached_plan(folder)
    if current is not None:
        raise EnvironmentLacking(f"{folder}: another capture is attached, of plan {current}.")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ATTACHED
    temporary = folder / f".{uuid.uuid4().hex}"
    temporary.write_text(json.dumps({"plan": str(plan), "by": process_key()}), encoding="utf-8")
    temporary.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def attached_plan(folder: Path) -> Path | None:
    """The plan that is attached: left by a kclab that still lives, of this user (or root)."""
    file = folder / ATTACHED
    try:
        if file.stat().st_uid not in (os.geteuid(), 0):
            return None
        told = json.loads(file.read_text(encoding="utf-8"))
        return Path(told["plan"]) if is_alive(told["by"]) else None
    except (OSError, ValueError, KeyError):
        return None


def wait_for(ask: Callable[[], Found | None], every: float = TICK_SECONDS) -> Found:
    """Ask each `every` seconds, for as long as it takes, until the answer is one; the answer."""
    pause = threading.Event()
    while not (found := ask()):
        pause.wait(every)
    return found
