"""Requests and steps: what a captured call belongs to. No torch here.

A request is one unit of work that the program does for somebody; a step is one call of the root
class within it. Both travel in context variables, so asyncio tasks carry them by themselves;
`kclab.capture.threads` makes threads carry them too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = [
    "Request",
    "Step",
    "current_request",
    "current_step",
    "request",
    "set_program_step",
    "set_request_source",
    "set_watcher",
    "step",
]

PROGRAM = "program"
"""The request that a whole program is, where nobody names another."""


@dataclass(eq=False, slots=True)
class Request:
    """One request, and the count of its steps."""

    id: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for; goes whole into each receipt."""
    started_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    """Microseconds UTC."""
    whole: Step | None = None
    """The step that stands for the whole request, until its first step of its own."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What each receipt says about the request besides its payload."""
    _counter: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def next_step(self) -> int:
        """The next step's number, from 0; safe from any thread."""
        if self.whole is not None:
            self.whole.closed = True
        return next(self._counter)


@dataclass(eq=False, slots=True)
class Step:
    """One step of a request."""

    request: Request
    index: int
    selected: bool = True
    """Whether the plan captures this step."""
    root: object = None
    """The root module whose call this is; None outside any."""
    closed: bool = False
    """Set when the step ends: a thread that outlives it captures nothing more."""
    noted: bool = False
    """Whether it is counted already that a compiler hides some of it."""
    names: object = None
    """`ModuleNames` of the step, made when the first call is captured."""
    own_ns: int = 0
    """Spent in kclab's own frames on the step's threads: copying, and looking at operators."""
    stalled_us: int = 0
    """Of it, what receipts tell."""


class Watcher(Protocol):
    """What an armed capture does around steps; see `kclab.capture.tap.Tap`."""

    def selects(self, index: int) -> bool:
        """Whether the plan captures the step with this number."""

    def watching(self, step: Step) -> AbstractContextManager[object]:
        """Watch operator calls on this thread while the context is open."""

    def whole_requests(self) -> bool:
        """Whether a request is a step by itself: true without a root class."""


_REQUEST: ContextVar[Request | None] = ContextVar("kclab_request", default=None)
_STEP: ContextVar[Step | None] = ContextVar("kclab_step", default=None)


class _Process:
    """State that all threads of the process share."""

    watcher: Watcher | None = None
    program = Request(PROGRAM)
    program_step: Step | None = None

    source: Callable[[], Request | None] | None = None


def current_request() -> Request | None:
    """The request of this thread or task: the innermost `request()`, else the process's own."""
    named = _REQUEST.get()
    if named is not None or _Process.source is None:
        return named or _Process.program
    return _Process.source()


def current_step() -> Step | None:
    """The step that is running in this thread or task, None between steps."""
    running_step = _STEP.get() or _Process.program_step
    return None if running_step is None or running_step.closed else running_step


def set_request_source(source: Callable[[], Request | None] | None) -> None:
    """Where calls outside any `request()` belong: a server names its active request here.

    None restores the default, one request for the whole program. A source that returns None makes
    such calls count as "no request".
    """
    _Process.source = source


def is_innermost(made: Step) -> bool:
    """Whether this step, closed or not, is what this thread or task is in."""
    return (_STEP.get() or _Process.program_step) is made


def set_program_step(whole: Step | None) -> None:
    """The step that the whole program is, where it has no root; None when it ends."""
    _Process.program_step = whole


def set_watcher(watcher: Watcher | None) -> None:
    """Connect the armed capture of this process; None disconnects it. Steps count from 0 again."""
    _Process.watcher = watcher
    _Process.program = Request(PROGRAM)


@contextmanager
def request(id: str, payload: Mapping[str, Any] | None = None) -> Iterator[Request]:
    """Everything inside is the request `id`; harmless where nothing captures.

    Without a root class, the request is step 0 of itself until its first `step()`.
    """
    made = Request(id, dict(payload or {}))
    watcher = _Process.watcher
    token = _REQUEST.set(made)
    try:
        if watcher is not None and watcher.whole_requests():
            made.whole = Step(made, 0, watcher.selects(0))
            with running(made.whole):
                yield made
        else:
            yield made
    finally:
        _reset(_REQUEST, token)


@contextmanager
def step() -> Iterator[Step | None]:
    """Everything inside is the next step of the current request; None outside any request."""
    current = current_request()
    if current is None:
        yield None
        return
    made = new_step(current)
    with running(made):
        yield made


def new_step(current: Request, root: object = None) -> Step:
    """Count one more step of a request."""
    index = current.next_step()
    watcher = _Process.watcher
    return Step(current, index, watcher is not None and watcher.selects(index), root)


@contextmanager
def running(made: Step) -> Iterator[Step]:
    """Make a step the current one, watched if it is selected, and close it at the end."""
    token = _STEP.set(made)
    try:
        with _watching(made):
            yield made
    finally:
        made.closed = True
        made.names = None
        _reset(_STEP, token)


def run_unwatched(
    made: Step, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call as a step that is not selected: as `running`, for the cost of a few lines.

    A step that nobody wants must cost next to nothing, and a context manager's code is not in any
    cache by the time that the next step comes.
    """
    token = _STEP.set(made)
    try:
        return call(*args, **kwargs)
    finally:
        made.closed = True
        _reset(_STEP, token)


def _watching(made: Step) -> AbstractContextManager[object]:
    watcher = _Process.watcher
    if watcher is None or not made.selected:
        return nullcontext()
    return watcher.watching(made)


@contextmanager
def carried(current: Request | None, made: Step | None) -> Iterator[None]:
    """Go on with a request and step in another thread than the one that has them."""
    request_token, step_token = _REQUEST.set(current), _STEP.set(made)
    try:
        if made is None or made.closed:
            yield
        else:
            with _watching(made):
                yield
    finally:
        _reset(_STEP, step_token)
        _reset(_REQUEST, request_token)


def _reset(variable: ContextVar[Any], token: Token[Any]) -> None:
    # An async generator may be closed in another context than it was begun in.
    with suppress(ValueError):
        variable.reset(token)


def to_carry() -> tuple[Request | None, Step | None] | None:
    """What a thread that starts now should carry; None when there is nothing."""
    named, running_step = _REQUEST.get(), current_step()
    return None if named is None and running_step is None else (named, running_step)
