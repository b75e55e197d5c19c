"""`kclab import`: merge a validated capture, dataset or store into this store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.groups import grouped
from kclab.cli.output import Format, FormatOption, note, print_fields
from kclab.cli.store import current_store
from kclab.core.errors import ExitCode
from kclab.core.units import format_bytes

if TYPE_CHECKING:
    from kclab.dataset.options import ImportOptions, ImportSummary

app = typer.Typer()


PartialOption = Annotated[
    bool, typer.Option("--partial", help="Take the good rows of a root that has bad ones.")
]
UnvalidatedOption = Annotated[
    bool,
    typer.Option("--include-unvalidated", help="Also take rows no replay judged; marked so."),
]
LinkOption = Annotated[
    bool, typer.Option("--link", help="Hard-link files instead of copying them.")
]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Read again what is already here, on both sides.")
]
RepairOption = Annotated[
    bool, typer.Option("--repair", help="As --verify; replace this store's damaged files.")
]
DefinitionsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of the root's definitions.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Checkpoint whose weights an SGLang dump's linears have."),
]


@dataclass(frozen=True)
class Taking:
    """What is taken of the source, and how."""

    partial: PartialOption = False
    include_unvalidated: UnvalidatedOption = False
    link: LinkOption = False
    verify: VerifyOption = False
    repair: RepairOption = False
    definitions: DefinitionsOption = None
    model: ModelOption = None

    def options(self) -> ImportOptions:
        """The same, as the import takes it."""
        from kclab.dataset.options import ImportOptions

        return ImportOptions(**vars(self))


@app.command()
@grouped
def import_command(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            help="A capture root, dataset, FlashInfer-Trace set, kclab.db, or engine's dump: its"
            " path, or its s3:// or hf:// URL."
        ),
    ],
    taking: Taking,
    form: FormatOption = Format.TABLE,
) -> None:
    """Merge a validated capture, dataset or store into this store, by content, nothing twice.

    All or nothing: a row that no replay passed, or that cannot be read, refuses the whole root and
    is named by file and line. What is already here is not read again. Exit code: 0 imported,
    1 something was refused, 3 there was nothing in it.

    Examples: kclab import results/run7 · kclab import ../other/kclab.db
    · kclab import trace --partial · kclab import s3://bucket/run7
    """
    from kclab.cli.progress import shown_progress
    from kclab.core.urls import is_url
    from kclab.dataset.importing import import_source

    with shown_progress(lines=is_url(path)) as progress:
        summary = import_source(current_store(context), path, taking.options(), progress=progress)
    _tell(summary)
    print_fields(fields(summary, form), form)
    if summary.refused:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _tell(summary: ImportSummary) -> None:
    for warning in summary.warnings:
        note(f"warning: {warning}")
    for refusal in summary.refused:
        note(f"refused: {refusal}")
    for digest in summary.repaired:
        note(f"repaired: blob {digest}, whose file held something else")


def fields(summary: ImportSummary, form: Format) -> dict[str, Any]:
    """The summary as `name: value`; what is nothing stays out of a person's table."""
    table = form is Format.TABLE
    values: dict[str, Any] = {
        "source": summary.source,
        "workloads": summary.workloads,
        "receipts": summary.captures,
        "replays": summary.replays,
        "definitions": summary.definitions,
        "blobs": summary.blobs,
        "bytes": format_bytes(summary.nbytes) if table else summary.nbytes,
        "already here": summary.known,
        "refused": len(summary.refused),
    }
    rare = {
        "images": summary.images,
        "unvalidated": summary.unvalidated,
        "absent blobs": summary.absent,
        "repaired blobs": len(summary.repaired),
        "solutions and traces": summary.foreign,
        "runs": summary.runs,
        "other rows": summary.other,
        "objects fetched": summary.fetched,
        "bytes fetched": (
            format_bytes(summary.fetched_bytes)
            if table and summary.fetched_bytes
            else summary.fetched_bytes
        ),
    }
    return {**values, **{name: value for name, value in rare.items() if value or not table}}
