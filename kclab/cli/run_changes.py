"""`kclab runs`: what changes runs: tags, notes, removal."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.options import BeforeOption, RunArgument, YesOption, show_instant
from kclab.cli.output import note
from kclab.cli.show import short_run
from kclab.cli.store import current_store
from kclab.core.errors import BadUsage, NothingMatched
from kclab.core.units import counted, format_bytes
from kclab.db.queries.runs import find_run

if TYPE_CHECKING:
    from kclab.db.removal import Removal


def register(app: typer.Typer) -> None:
    """Add this module's commands to `kclab runs`."""
    for command in (tag, untag):
        app.command()(command)
    app.command("note")(note_command)
    app.command()(rm)


def tag(
    context: typer.Context,
    run: RunArgument,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="Words to label it with.")],
) -> None:
    """Put tags on a run."""
    from kclab.db.labels import add_tags

    with closing(current_store(context).write()) as connection:
        row = find_run(connection, run)
        added = add_tags(connection, int(row["id"]), tags)
    note(f"run {short_run(row['uuid'])}: {counted(added, 'tag')} added.")


def untag(
    context: typer.Context,
    run: RunArgument,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="Tags to take off.")],
) -> None:
    """Take tags off a run."""
    from kclab.db.labels import remove_tags

    with closing(current_store(context).write()) as connection:
        row = find_run(connection, run)
        removed = remove_tags(connection, int(row["id"]), tags)
    if not removed:
        raise NothingMatched(f"run {short_run(row['uuid'])} has no such tag.")
    note(f"run {short_run(row['uuid'])}: {counted(removed, 'tag')} removed.")


def note_command(
    context: typer.Context,
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help='The note; "" removes it.')],
) -> None:
    """Write a note on a run, in place of the one it has."""
    from kclab.db.labels import set_note

    with closing(current_store(context).write()) as connection:
        row = find_run(connection, run)
        set_note(connection, int(row["id"]), text)
    note(f"run {short_run(row['uuid'])}: note {'written' if text.strip() else 'removed'}.")


def rm(
    context: typer.Context,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs: uuids or beginnings.")
    ] = None,
    before: BeforeOption = None,
    yes: YesOption = False,
) -> None:
    """Remove runs with all that hangs on them, after showing what that is.

    Their captures go with them, the workloads that nothing else captured, and every verdict on
    those. Runs in progress are refused. The bytes stay until `kclab db gc`.
    """
    from kclab.db.removal import plan_removal, removable_runs, remove_runs

    if bool(runs) == (before is not None):
        raise BadUsage("name the runs to remove, or --before WHEN.")
    show_instant("before", before)
    with closing(current_store(context).write()) as connection:
        found = [find_run(connection, text) for text in runs or ()]
        ids = removable_runs(connection, found, before)
        plan = plan_removal(connection, ids)
        for line in _told(plan):
            note(line)
        if not yes:
            _confirm()
        remove_runs(connection, ids)
    note("removed; `kclab db gc` frees the bytes." if plan.blobs else "removed.")


def _told(plan: Removal) -> list[str]:
    parts = (
        ("capture", plan.captures),
        ("workload", plan.workloads),
        ("verdict", plan.verdicts),
        ("verdict", plan.foreign_verdicts),
        ("measurement", plan.measurements),
        ("result", plan.results),
    )
    told = [counted(count, noun) for noun, count in parts]
    told[1] += " that nothing else captured"
    told[3] += " of other runs on these captures"
    told[5] += " of a search"
    lines = [f"  {line}" for line, (_, count) in zip(told, parts, strict=True) if count]
    if plan.blobs:
        size = format_bytes(plan.nbytes)
        lines.append(f"  {counted(plan.blobs, 'blob')} ({size}) left for `kclab db gc`")
    return [f"to remove: {counted(plan.runs, 'run')}", *lines]


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise BadUsage("nothing was removed: add --yes, since there is nobody to ask.")
    if not typer.confirm("Remove?", err=True):
        raise typer.Exit(1)
