"""`kclab ui`: look at a store in the terminal."""

from __future__ import annotations

import sys

import typer

from kclab.cli.store import current_store
from kclab.core.errors import EnvironmentLacking

app = typer.Typer()


@app.command()
def ui(context: typer.Context) -> None:
    """Browse runs, replays and FC2 results on three live screens.

    Keys 1, 2 and 3 switch between them, ? is help, q ends. It only reads, never waits for a writer
    nor makes one wait, and follows the database as it changes. Needs the `tui` extra.
    """
    try:
        from kclab.tui import KclabApp, end_with_terminal
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise EnvironmentLacking(
            "kclab ui needs Textual, which is not installed; pip install 'kclab[tui]'."
        ) from error
    store = current_store(context)
    store.read().close()  # says what is wrong with a database before the screen is taken
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise EnvironmentLacking("kclab ui needs a terminal; `kclab runs list` does without.")
    end_with_terminal(sys.stdin.fileno())
    KclabApp(store).run()
