"""`kclab capture`: take operator calls out of a running program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.capture_options import OnFull, Per
from kclab.cli.options import size_option
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
def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The program, as you start it.")
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="What to look for: torch (the default), qwen-image, …; repeatable."),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Module class whose calls are the steps."),
    ] = None,
    definition: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only these definitions; each must be captured."),
    ] = None,
    definitions: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Definitions besides kclab's own; repeatable."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N,N…", help="Steps to capture, as 0,4,7; else all.")
    ] = None,
    max_per_axes: Annotated[
        int,
        typer.Option(metavar="K", min=0, help="Captures per definition and sizes; 0: no limit."),
    ] = 4,
    max_bytes: Annotated[
        int, size_option("--max-bytes", help="New bytes over all processes: 4GiB, 500MB.")
    ] = 4 << 30,
    define_missing: Annotated[
        bool, typer.Option("--define-missing", help="Make definitions for shapes without one.")
    ] = False,
    per: Annotated[
        Per, typer.Option(help="One capture per variant (shape), or per site (each module).")
    ] = Per.VARIANT,
    on_full: Annotated[
        OnFull, typer.Option(help="When the queue is full: hold the program, or drop and count.")
    ] = OnFull.WAIT,
    strict: Annotated[
        bool, typer.Option("--strict", help="Raise capture errors into the program.")
    ] = False,
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For each receipt: model, revision, source…"),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Label the run; repeatable.")] = None,
    remark: Annotated[str | None, typer.Option("--note", help="A remark on the run.")] = None,
) -> None:
    """Start a program and capture the operator calls that it makes.

    The program's own output passes through untouched; what kclab says goes to stderr.
    """
    from kclab.capture.service import CaptureOptions, capture_run, parse_facts, parse_steps

    options = CaptureOptions(
        adapters=tuple(adapter or ("torch",)),
        root=root,
        definitions=tuple(definition or ()),
        definition_folders=tuple(definitions or ()),
        steps=parse_steps(steps),
        max_per_axes=max_per_axes or None,
        max_bytes=max_bytes,
        define_missing=define_missing,
        per=per.value,
        on_full=on_full.value,
        strict=strict,
        tags=tuple(tag or ()),
        note=remark,
        provenance=parse_facts(fact or ()),
    )
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
        note(f"the program waited {format_duration(summary.stall_us / 1e6)} for capture in all")
