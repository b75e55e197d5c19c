"""A bar on stderr for services that report (what, done, total)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A callback that moves a bar; nothing is drawn where stderr is no terminal."""
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

    def advance(what: str, done: int, total: int) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar:
        yield advance
