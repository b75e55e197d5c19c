"""`kclab replay`: run captured workloads through their references and compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.groups import grouped
from kclab.cli.output import Format, FormatOption, note
from kclab.cli.replay_options import How, InPlace, Which
from kclab.cli.replay_page import print_page, print_verdicts
from kclab.cli.store import current_store
from kclab.core.errors import BadUsage
from kclab.core.urls import local_path, without_credentials
from kclab.db.verdicts import ReplayRow
from kclab.replay import Progress, replay, replay_root, untrusted

if TYPE_CHECKING:
    from kclab.dataset.cases import Root

app = typer.Typer()


def _folder(path: str) -> Path:
    """The folder that an argument names; raises BadUsage for a URL of another place."""
    if (folder := local_path(path)) is None:
        shown = without_credentials(path)
        raise BadUsage(f"{shown}: a folder is replayed in place, a URL is not; kclab import it.")
    return folder


@app.command()
@grouped
def replay_command(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(
            parser=_folder,
            metavar="path",
            help="A capture root or dataset folder, replayed in place.",
        ),
    ] = None,
    *,
    which: Which,
    how: How,
    in_place: InPlace,
    form: FormatOption = Format.TABLE,
) -> None:
    """Run captured workloads through their references; compare every output element.

    Each verdict is stored as soon as it falls. Without a selection every capture of the store is
    replayed. Exit code: 0 all passed, 1 something differs or broke, 3 nothing to replay, 4 this
    machine lacks what is needed, such as trust in a reference.
    """
    selection, options = which.selection(), how.options()
    store = current_store(context)
    with _progress() as progress:
        if path is None:
            in_place.refuse()
            summary = replay(store, selection, options, progress)
        else:
            root, how_to_trust = _root(path, in_place)
            summary = replay_root(store, root, selection, options, progress, how_to_trust)
    if form is Format.TABLE:
        print_page(summary, path, oracle=options.oracle)
    else:
        print_verdicts(store, summary, form)
    raise typer.Exit(int(summary.exit_code))


def _root(path: Path, asked: InPlace) -> tuple[Root, str]:
    """The folder's captures, and what to say of a reference that may not run."""
    from kclab.core.trust import trust
    from kclab.dataset.roots import read_root

    root = read_root(path, asked.definitions)
    if asked.trust:
        for found in untrusted(root.definitions.values()):
            note(f"trusting the reference of {found.name} ({found.reference_sha256[:16]})")
            trust(found.reference_sha256, f"{found.name}, replay {path} --trust")
    folder = asked.definitions or next(
        (place for place in (path / "definitions", path.parent / "definitions") if place.is_dir()),
        path,
    )
    return root, f"read it, then: kclab definitions trust {folder} (or kclab replay {path} --trust)"


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr while verdicts fall."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    failures = 0
    screen = Console(stderr=True)
    bar = Progress(
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failures]}", style="red"),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    task = bar.add_task("", total=None, failures="")

    def advance(done: int, total: int, row: ReplayRow) -> None:
        nonlocal failures
        failures += row.status in ("failed", "error")
        shown = f"{failures} not passed" if failures else ""
        bar.update(task, completed=done, total=total, failures=shown)

    with bar:
        yield advance
