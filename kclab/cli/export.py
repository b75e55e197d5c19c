"""`kclab export`: write a dataset that other tools can load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.groups import grouped
from kclab.cli.options import DefinitionOption, RunOption, SinceOption, show_range
from kclab.cli.output import Format, note, print_fields
from kclab.cli.store import current_store
from kclab.core.errors import BadUsage
from kclab.core.units import counted, format_bytes

if TYPE_CHECKING:
    from kclab.dataset.export_rows import Selection
    from kclab.dataset.export_trace import TraceSummary
    from kclab.dataset.remote.upload import Upload
    from kclab.db.store import Store

app = typer.Typer()


class ExportFormat(StrEnum):
    """What to write."""

    FLASHINFER_TRACE = "flashinfer-trace"
    ROWS = "rows"


FormOption = Annotated[
    ExportFormat,
    typer.Option("--format", "-f", help="A dataset for flashinfer-bench, or rows alone."),
]
SolutionsOption = Annotated[
    bool, typer.Option("--with-baseline-solutions", help="Add each reference as a solution.")
]
RedactOption = Annotated[
    bool, typer.Option("--redact", help="Without prompts, images, command lines, hosts and paths.")
]


@dataclass(frozen=True)
class Chosen:
    """The rows to write."""

    definition: DefinitionOption = None
    run: RunOption = None
    since: SinceOption = None

    def selection(self) -> Selection:
        """The same, as the export takes it; says on stderr what the time means."""
        from kclab.dataset.export_rows import Selection

        show_range(self.since, None)
        return Selection(tuple(self.definition or ()), self.run, self.since)


@dataclass(frozen=True)
class Written:
    """What is written of them, and how."""

    form: FormOption = ExportFormat.FLASHINFER_TRACE
    with_baseline_solutions: SolutionsOption = False
    redact: RedactOption = False


@app.command()
@grouped
def export_command(
    context: typer.Context,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="A new or empty folder, or an s3:// URL of one.")
    ],
    chosen: Chosen,
    how: Written,
) -> None:
    """Write a dataset that other tools can load, and that comes back lossless.

    flashinfer-trace: definitions, workloads and blobs that flashinfer-bench loads, plus receipts
    and rows for kclab. rows: a store without its bytes. What the format cannot hold is left out of
    it by name, and lies beside it for kclab import.

    Examples: kclab export out · kclab export out --run last --redact
    · kclab export s3://bucket/run7 -f rows
    """
    from kclab.cli.progress import shown_progress
    from kclab.core.urls import is_url
    from kclab.dataset.exporting import export_destination

    selection = chosen.selection()
    store = current_store(context)
    if how.form is ExportFormat.ROWS and how.with_baseline_solutions:
        raise BadUsage("--with-baseline-solutions goes with --format flashinfer-trace.")
    with shown_progress(lines=is_url(destination)) as progress:
        target = export_destination(store, destination, progress)
        summary = _write(store, target, selection, how)
    for reason in summary.left_out:
        note(f"left out: {reason}")
    if summary.unproven:
        note(
            f"{summary.unproven:,} of {counted(summary.captures, 'capture')} did not pass a replay;"
            " kclab import refuses those. Run kclab replay, then export again"
        )
    print_fields(_fields(summary, target), Format.TABLE)


def _write(store: Store, target: Path | Upload, selection: Selection, how: Written) -> TraceSummary:
    from kclab.dataset.exporting import export_flashinfer_trace, export_rows

    if how.form is ExportFormat.ROWS:
        return export_rows(store, target, selection, redact=how.redact)
    return export_flashinfer_trace(
        store,
        target,
        selection,
        with_baseline_solutions=how.with_baseline_solutions,
        redact=how.redact,
    )


def _fields(summary: TraceSummary, target: Path | Upload) -> dict[str, Any]:
    shown = {
        "written": str(target) if isinstance(target, Path) else target.name,
        "definitions": summary.definitions,
        "workloads": summary.workloads,
        "receipts": summary.captures,
        "solutions": summary.solutions,
        "blobs": summary.blobs,
        "bytes": format_bytes(summary.nbytes),
        "left out": len(summary.left_out),
    }
    if isinstance(target, Path):
        return shown
    sent = {"objects sent": target.sent, "bytes sent": format_bytes(target.sent_bytes)}
    return shown | sent
