"""Let threads that start, and work that is submitted, inside a step belong to it.

`threading.Thread` and executors begin with an empty context, so calls made there would be nobody's.
Only kclab's own request and step are carried; the program's context variables stay as they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kclab.capture.context import carried, to_carry

APART = ("concurrent.futures.", "kclab.")
"""Makers of threads that belong to no step: a pool's outlive it (its work items carry instead)."""


def carry_steps() -> Callable[[], None]:
    """Start carrying; returns what stops it. Work in flight keeps what it carries."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    submit_any: Callable[..., Future[Any]] = submit

    @functools.wraps(start)
    def carrying_start(self: threading.Thread) -> None:
        target = getattr(self, "_target", None)
        origins = (type(self).__module__, getattr(target, "__module__", None) or "")
        if not any(origin.startswith(APART) for origin in origins):
            _carry_into(self)
        start(self)

    @functools.wraps(submit_any)
    def carrying_submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return submit_any(self, _carrying(fn), *args, **kwargs)

    # Replacing methods is the point here, and what mypy's method-assign is against.
    threading.Thread.start = carrying_start  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = carrying_submit  # type: ignore[method-assign,assignment]

    def stop() -> None:
        threading.Thread.start = start  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]

    return stop


def _carry_into(thread: threading.Thread) -> None:
    load, run = to_carry(), thread.run
    if load is None:
        return

    def carrying_run() -> None:
        try:
            with carried(*load):
                run()
        finally:
            del thread.run

    thread.run = carrying_run  # type: ignore[method-assign]  # of this one thread, put back after


def _carrying(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, to be run in another thread within what is current here."""
    load = to_carry()
    if load is None:
        return work

    def run(*args: Any, **kwargs: Any) -> Any:
        with carried(*load):
            return work(*args, **kwargs)

    return run
