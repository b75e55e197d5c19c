"""`kclab report`: a page about what ran, what failed, and what became slower."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kclab.cli.options import SinceOption, UntilOption, show_range
from kclab.cli.output import note
from kclab.cli.store import current_store
from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.core.units import format_bytes

app = typer.Typer()


class ReportFormat(StrEnum):
    """What a report can be written as."""

    HTML = "html"
    MD = "md"


@app.command()
def report(
    context: typer.Context,
    since: SinceOption = None,
    until: UntilOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; `-` is stdout. report.html, or stdout: md."),
    ] = None,
    form: Annotated[
        ReportFormat | None,
        typer.Option("--format", "-f", help="html, or md for a pull request. By the file's name."),
    ] = None,
) -> None:
    """Write a report on the runs of a time: regressions on top, failures, FC2, history.

    The HTML is one file with its drawings in it: no script, nothing from the network. Needs the
    `report` extra. Exit code 3 when no run started in that time.
    """
    try:
        from kclab.report import as_html, as_markdown, gather
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "markupsafe"):
            raise
        raise EnvironmentLacking(
            "kclab report needs jinja2, which is not installed; pip install 'kclab[report]'."
        ) from error
    from kclab.db.queries.report import Period

    show_range(since, until)
    form = form or _form_of(output)
    store = current_store(context)
    with closing(store.read()) as connection:
        found = gather(connection, Period(since, until))
    text = (as_html if form is ReportFormat.HTML else as_markdown)(found, store.database.name)
    _write(text, output or (Path("report.html") if form is ReportFormat.HTML else Path("-")))


def _form_of(output: Path | None) -> ReportFormat:
    markdown = output is not None and output.suffix.lower() in (".md", ".markdown")
    return ReportFormat.MD if markdown else ReportFormat.HTML


def _write(text: str, path: Path) -> None:
    """To stdout, or whole or not at all to a file: a reader never meets half a page."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadUsage(f"--output {path}: {error.strerror}.") from error
    note(f"wrote {path} ({format_bytes(len(text.encode()))})")
