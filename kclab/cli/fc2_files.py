"""FC2 results as files: export, and import of the seed script's JSON."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.fc2_options import MIB
from kclab.cli.options import size_option
from kclab.cli.output import Format, note, print_rows
from kclab.cli.store import current_store
from kclab.core.errors import NothingMatched

if TYPE_CHECKING:
    from kclab.db.store import Store


class FileForm(StrEnum):
    """What an export looks like."""

    JSON = "json"
    CSV = "csv"
    C = "c"
    SEED = "seed"


def register(app: typer.Typer) -> None:
    """Add this module's commands to `kclab fc2`."""
    app.command()(export)
    app.command("import")(import_)


def export(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run; by default the best of all.")
    ] = None,
    form: Annotated[
        FileForm,
        typer.Option("--format", "-f", help="json or csv rows, c code, or the seed's JSON shape."),
    ] = FileForm.JSON,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; by default stdout.")
    ] = None,
    workspace: Annotated[
        int, size_option("--workspace", help="Without RUN: configs that need at most this.")
    ] = 64 * MIB,
) -> None:
    """Write results for other programs."""
    from kclab.db.queries.fc2 import best_results, run_results
    from kclab.fc2.export import seed_document

    with closing(current_store(context).read()) as connection:
        if form is FileForm.SEED:
            document = seed_document(connection, run or "last")
            _write(json.dumps(document, indent=2) + "\n", output)
            return
        rows = (
            run_results(connection, run)
            if run is not None
            else best_results(connection, workspace=workspace)
        )
    if not rows:
        raise NothingMatched("no measured config to export.")
    if form is FileForm.C:
        _write(_c_file(rows), output)
    else:
        _write_rows(rows, form, output)


def _c_file(rows: list[dict[str, Any]]) -> str:
    from kclab.fc2.export import C_HEADER, c_function

    functions = [c_function(row) for row in rows if row["backend"] == "cublaslt"]
    if not functions:
        raise NothingMatched("no cuBLASLt config to export: these are the cpu backend's own.")
    return "\n\n".join([C_HEADER, *functions]) + "\n"


def write_seed_document(store: Store, run: str, output: Path, **parts: Any) -> None:
    """Write a run in the seed script's JSON shape, with what only its mode has as `parts`."""
    from kclab.fc2.export import seed_document

    with closing(store.read()) as connection:
        document = seed_document(connection, run) | parts
    _write(json.dumps(document, indent=2) + "\n", output)


def _write_rows(rows: list[dict[str, Any]], form: FileForm, output: Path | None) -> None:
    from contextlib import redirect_stdout
    from io import StringIO

    from kclab.cli.output import Column

    text = StringIO()
    with redirect_stdout(text):
        print_rows(rows, [Column(key) for key in rows[0]], Format(form.value))
    _write(text.getvalue(), output)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}")


def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Result files.")],
) -> None:
    """Merge result files of the seed script; the same file twice adds nothing."""
    from kclab.fc2.seed_import import import_file

    store = current_store(context)
    for path in files:
        report = import_file(store, path)
        if report.already:
            note(f"{path}: imported before, as run {report.run_uuid[:13]}; nothing was added")
        else:
            note(f"{path}: {report.results} results, run {report.run_uuid[:13]}")
