"""A bar on stderr for services that report (what, done, total)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kclab.cli.output import note

SAY_EVERY = 5.0
"""Seconds between lines where no bar can be drawn."""


@contextmanager
def shown_progress(*, lines: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A callback that moves a bar on a terminal.

    Elsewhere nothing is said, or with `lines`, for work that takes minutes, a line every
    SAY_EVERY seconds: what is being done, how far it is, and for how long.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("reading rows", total=None)
    if lines and not console.is_terminal:
        yield _sayer()
        return

    def advance(what: str, done: int, total: int) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar:
        yield advance


def _sayer() -> Callable[[str, int, int], None]:
    began = time.monotonic()
    said = 0.0

    def say(what: str, done: int, total: int) -> None:
        nonlocal said
        elapsed = time.monotonic() - began
        if elapsed >= said + SAY_EVERY:
            said = elapsed
            note(f"after {elapsed:.0f} s: {what}, {done} of {total}")

    return say
