"""`kclab db`: make, upgrade, check, back up, measure and clean the store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli import db_check
from kclab.cli.db_check import FAULTS
from kclab.cli.options import LimitOption
from kclab.cli.output import (
    Column,
    Format,
    FormatOption,
    note,
    print_fields,
    print_rows,
    print_some,
)
from kclab.cli.store import current_store
from kclab.core.units import counted, format_bytes

if TYPE_CHECKING:
    from kclab.db.garbage import Garbage
    from kclab.db.store import Store

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


OlderThanOption = Annotated[
    float,
    typer.Option(
        "--older-than",
        metavar="MINUTES",
        min=0,
        help="Leave alone what was touched in the last MINUTES.",
    ),
]


@app.callback()
def database() -> None:
    """Make, upgrade, check, back up and clean the database.

    Looking (check, stats, gc without --yes) changes nothing and never makes a database.
    """


@app.command()
def init(
    context: typer.Context,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Put whatever lies there aside under another name, and start anew."
        ),
    ] = False,
) -> None:
    """Make an empty database. One that is there already stays as it is."""
    from kclab.db.migrate import ensure_current, set_aside

    path = current_store(context).database
    if force and (kept := set_aside(path)):
        note(f"{path} was there; it is now {kept}.")
    existed = path.exists()
    _tell_backup(ensure_current(path))
    note(f"{path}: {'is there, and current' if existed else 'made'}.")


@app.command()
def upgrade(context: typer.Context) -> None:
    """Bring an older database to this kclab's schema, after a backup."""
    from kclab.db.connection import require_file, schema_revision
    from kclab.db.migrate import ensure_current
    from kclab.db.revision import SCHEMA_REVISION

    path = current_store(context).database
    require_file(path)
    found = schema_revision(path)
    _tell_backup(ensure_current(path))
    if found == SCHEMA_REVISION:
        note(f"{path}: has schema {found}, nothing to do.")
    else:
        note(f"{path}: upgraded from {found or 'empty'} to {SCHEMA_REVISION}.")


def _tell_backup(backup: Path | None) -> None:
    if backup:
        note(f"The database as it was is in {backup}.")


db_check.register(app)


@app.command()
def backup(
    context: typer.Context,
    destination: Annotated[
        Path | None, typer.Argument(help="The copy's name; beside the database unless given.")
    ] = None,
) -> None:
    """Copy the database, also while it is in use. Blobs are not copied: their files never change.

    A name that is taken gets a number; nothing is overwritten.
    """
    from kclab.db.connection import require_current
    from kclab.db.migrate import back_up

    path = current_store(context).database
    require_current(path)
    made = back_up(path, destination or path.with_name(f"{path.name}.bak"))
    note(f"{made}: {format_bytes(made.stat().st_size)}.")


@app.command()
def stats(context: typer.Context, form: FormatOption = Format.TABLE) -> None:
    """Show rows a table, bytes, and how much sharing equal tensors saves."""
    from kclab.db.contents import contents

    store = current_store(context)
    found = contents(store)
    if form is Format.JSON:
        print_fields({"database": store.database, **asdict(found), "sharing": found.sharing}, form)
        return
    rows = [{"table": name, "rows": count} for name, count in found.tables.items()]
    print_rows(rows, [Column("table"), Column("rows", right=True)], form, empty="no rows.")
    if form is Format.CSV:
        return
    shared = "-" if found.sharing is None else f"each byte is used {found.sharing:.2f} times"
    print_fields(
        {
            "database": f"{store.database}, {format_bytes(found.database_bytes)} "
            f"({format_bytes(found.free_bytes)} free), journal {found.journal_mode}",
            "blobs": f"{found.blobs:,} ({found.absent_blobs:,} absent), "
            f"{format_bytes(found.blob_bytes)}",
            "sharing": shared,
        },
        form,
    )


@app.command()
def gc(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove; only list otherwise.")] = False,
    older_than: OlderThanOption = 60,
    limit: LimitOption = 50,
    form: FormatOption = Format.TABLE,
) -> None:
    """Remove what nothing uses: blobs and images that no row names, logs of runs that are gone,
    temporaries of killed processes.

    Without --yes it only lists. Safe beside running captures and imports.
    """
    from kclab.db.garbage import find_garbage, remove_garbage

    store = current_store(context)
    if yes:
        _adopt_abandoned(store)
    garbage = find_garbage(store, int(older_than * 60_000_000))
    print_some(
        _garbage_rows(garbage), FAULTS[:2], form, limit, "things", empty="nothing to remove."
    )
    if garbage.alive:
        note(
            f"{counted(len(garbage.alive), 'run')} still going on: blob rows and newer files stay."
        )
    if yes and garbage.count:
        removed = remove_garbage(store, garbage)
        note(
            f"removed {counted(removed.rows, 'blob')} that nothing named, {removed.files:,} "
            f"without a row, {counted(removed.leftovers, 'temporary file')}, "
            f"{counted(removed.kept, 'image')} or log: {format_bytes(removed.nbytes)}."
        )
    elif garbage.count:
        note(f"{format_bytes(garbage.nbytes)} would go; kclab db gc --yes removes it.")


def _adopt_abandoned(store: Store) -> None:
    """Read in what killed captures left aside: it names blobs that have no row yet."""
    from kclab.capture.settle import adopt_abandoned

    with closing(store.write()) as connection:
        if adopted := adopt_abandoned(connection, store.database):
            note(f"{counted(adopted, 'killed capture')} settled first.")


def _garbage_rows(garbage: Garbage) -> list[dict[str, str]]:
    return [
        *({"kind": "unused", "name": sha256} for sha256 in garbage.rows),
        *({"kind": "unreferenced", "name": sha256} for sha256 in garbage.files),
        *({"kind": "leftover", "name": str(path)} for path in garbage.leftovers),
        *({"kind": "leftover", "name": str(path)} for path in garbage.kept.leftovers),
        *({"kind": "unreferenced", "name": str(name)} for name in garbage.kept.files),
        *({"kind": "unreferenced", "name": str(path)} for path in garbage.kept.folders),
    ]
