"""`kclab capture`: take operator calls out of a running program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.capture_options import Notes, Scope
from kclab.cli.groups import grouped
from kclab.cli.output import note
from kclab.cli.serve import EPILOG, serve
from kclab.cli.store import current_store
from kclab.cli.table import Column, print_table
from kclab.core.errors import ExitCode
from kclab.core.units import format_duration

if TYPE_CHECKING:
    from kclab.capture.service import CaptureSummary

app = typer.Typer(no_args_is_help=True, help="Capture operator calls out of a running program.")


@app.callback()
def capture() -> None:
    """Capture operator calls out of a running program."""


app.command(epilog=EPILOG)(serve)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Examples: kclab capture run -- python train.py · "
    "kclab capture run --adapter qwen-image --steps 0,4,7 -- python generate.py · "
    "kclab capture run --definition 'dense_gemm_bf16_*' --define-missing -- python serve.py",
)
@grouped
def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The program, as you start it.")
    ],
    scope: Scope,
    notes: Notes,
) -> None:
    """Start a program and capture the operator calls that it makes.

    The program's own output passes through untouched; what kclab says goes to stderr.
    """
    from kclab.capture.service import capture_run

    options = scope.options(notes)
    options = replace(options, adapters=options.adapters or ("torch",))
    summary = capture_run(current_store(context), options, command, note)
    report(summary)
    if summary.captures:
        note(f"next: kclab replay --run {summary.run_uuid[:13]}")
    raise typer.Exit(int(exit_code(summary)))


def exit_code(summary: CaptureSummary) -> ExitCode:
    """What a capture's outcome is to the shell."""
    codes = {"passed": ExitCode.OK, "empty": ExitCode.NOTHING}
    return codes.get(summary.status, ExitCode.CHECK_FAILED)


COVERAGE = (
    Column("definition", middle=True),
    Column("seen", right=True),
    Column("captured", right=True),
    Column("repeats", right=True),
    Column("skipped", wrap=True, sparse=True),
)


def report(summary: CaptureSummary) -> None:
    """Coverage and verdict on stderr: stdout belongs to the program that ran."""
    rows = [
        {
            "definition": row.name,
            "seen": row.calls,
            "captured": row.captured,
            "repeats": row.duplicates,
            "skipped": row.reasons() or None,
        }
        for row in summary.coverage
    ]
    if rows:
        print_table(rows, COVERAGE, None, stderr=True)
    note(f"{summary.status}: run {summary.run_uuid}, {summary.headline}")
    for problem in summary.problems:
        note(problem)
    if without := sum("no definition" in row.skipped for row in summary.coverage):
        kinds = "1 kind of call has" if without == 1 else f"{without} kinds of call have"
        note(f"{kinds} no definition; --define-missing makes them")
    if summary.captures:
        copying, watching = summary.stall_us / 1e6, summary.watching_us / 1e6
        storing = format_duration(summary.storing_us / 1e6)
        note(
            f"the program waited {format_duration(copying + watching)} for capture in all: "
            f"{format_duration(copying)} copying, {format_duration(watching)} looking at operators;"
            f" storing took {storing} of CPU time beside it"
        )
