"""`kclab capture serve`: start a serving engine, ask it, and capture what its workers compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from kclab.cli.capture_options import Notes
from kclab.cli.groups import grouped
from kclab.cli.output import note
from kclab.cli.serve_options import Model, Process, Requests, ServedScope, serve_options
from kclab.cli.store import current_store
from kclab.core.errors import ExitCode

if TYPE_CHECKING:
    from kclab.serving import ServeSummary

EPILOG = (
    "Examples: kclab capture serve --model-path models/Qwen-Image-2.1 --case square --case edit · "
    "kclab capture serve --model-path models/Qwen3-Next --case completion -- --tp 2 · "
    "KCLAB_ATTACH=/tmp/attach kclab capture serve --attach http://127.0.0.1:30000 "
    "--model-path models/Qwen-Image-2.1"
)


@grouped
def serve(
    context: typer.Context,
    asked: Requests,
    process: Process,
    scope: ServedScope,
    model: Model,
    notes: Notes,
) -> None:
    """Start an engine, send it complete requests, capture its workers' operator calls, replay them.

    The engine is ended in any case, with everything that it started. Its output goes to the
    store's `runs/RUN/server.log`, images into `files/`. Exit code: 0 all captured and passed, 1 the
    engine failed, something selected was not captured or a replay did not pass, 3 nothing was
    captured, 4 a port is taken or the engine is not here.
    """
    from kclab.serving import capture_serve

    options = serve_options(asked, process, model, scope, notes)
    with _progress() as progress:
        summary = capture_serve(current_store(context), options, progress)
    _report(summary)
    raise typer.Exit(int(_exit_code(summary)))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is going on: a spinner on a terminal, lines elsewhere; replays only as a spinner."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None if line.startswith("replayed ") else note(line)
        return
    with console.status("starting") as status:
        yield lambda line: status.update(line)


def _report(summary: ServeSummary) -> None:
    from kclab.cli.capture import report
    from kclab.cli.replay_page import print_page

    for request in summary.requests:
        note(f"{request.request_id}: {request.outputs} answered in {request.seconds:.1f} s")
    if summary.log is not None:
        note(f"the engine's own output: {summary.log}")
    report(summary.capture)
    if summary.replayed is not None:
        print_page(summary.replayed, None, oracle=False)
    elif summary.capture.captures:
        note(f"next: kclab replay --run {summary.capture.run_uuid[:13]}")


def _exit_code(summary: ServeSummary) -> ExitCode:
    from kclab.cli.capture import exit_code

    code = exit_code(summary.capture)
    if code is not ExitCode.OK or summary.replayed is None:
        return code
    return summary.replayed.exit_code
