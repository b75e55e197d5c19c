"""`kclab db check`: what is damaged, missing or strange, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.options import LimitOption
from kclab.cli.output import (
    Column,
    Format,
    FormatOption,
    note,
    print_fields,
    print_some,
)
from kclab.cli.show import short
from kclab.cli.store import current_store
from kclab.core.errors import DatabaseDamaged, ExitCode
from kclab.core.units import counted, format_bytes

if TYPE_CHECKING:
    from kclab.db.check import CheckReport, Progress

FAULTS = [
    Column("kind"),
    Column("name", show=lambda name: name if "/" in name else short(name), wide=True),
    Column("detail", wide=True),
]


def register(app: typer.Typer) -> None:
    """Add this module's command to `kclab db`."""
    app.command()(check)


def check(
    context: typer.Context,
    form: FormatOption = Format.TABLE,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Threads that hash; all cores.")
    ] = None,
    limit: LimitOption = 50,
) -> None:
    """Check the database, and re-hash every blob and every image.

    Lists damaged ones (other bytes than their digest says), missing ones (a row without a file),
    absent ones (known to be elsewhere), files without a row, and temporaries of killed processes.
    Exit code 1 when something is damaged or missing, 5 when the database itself is damaged.
    """
    from kclab.db import check as checking

    store = current_store(context)
    with _hashing() as progress:
        report = checking.check(store, progress, jobs)
    if form is Format.JSON:
        print_fields(_summary(report), form)
    else:
        rows = [asdict(fault) for kind in checking.KINDS for fault in report.of(kind)]
        print_some(rows, FAULTS, form, limit, "faults", empty="no faults.")
    _conclude(report, store.database)


def _summary(report: CheckReport) -> dict[str, Any]:
    from kclab.db.check import KINDS

    found = {
        kind: [{"name": fault.name, "detail": fault.detail} for fault in report.of(kind)]
        for kind in KINDS
    }
    head = {
        "blobs": report.blobs,
        "files": report.files,
        "bytes": report.nbytes,
        "journal_mode": report.journal_mode,
    }
    return {"ok": not (report.database_damaged or report.blobs_damaged), **head, **found}


def _conclude(report: CheckReport, path: Path) -> None:
    from kclab.db.migrate import warn_without_wal

    warn_without_wal(path, report.journal_mode)
    if report.database_damaged:
        raise DatabaseDamaged(
            f"{path} is damaged; it was left as it is. Go back to a copy (kclab db backup makes "
            "them, and so does each upgrade), or save what can be read with sqlite3's .recover."
        )
    if strangers := report.of("unreferenced", "leftover"):
        note(f"{counted(len(strangers), 'file')} that nothing uses: kclab db gc removes them.")
    images = f" and {counted(report.files, 'image')}" if report.files else ""
    told = f"{counted(report.blobs, 'blob')}{images} hashed, {format_bytes(report.nbytes)}"
    if report.blobs_damaged:
        bad = len(report.of("damaged", "missing"))
        note(f"{told}: {bad} damaged or missing. kclab import PATH --repair brings them back.")
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
    note(f"{told}: all as their digests say.")


@contextmanager
def _hashing() -> Iterator[Progress]:
    """A bar on stderr, in bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("hashing"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
