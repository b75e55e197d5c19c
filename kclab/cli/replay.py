"""`kclab replay`: run captured workloads through their references and compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kclab.cli.options import DefinitionOption, RunOption, SinceOption, UntilOption, show_range
from kclab.cli.output import Format, FormatOption, note
from kclab.cli.replay_page import print_page, print_verdicts
from kclab.cli.store import current_store
from kclab.db.store import Store
from kclab.db.verdicts import ReplayRow
from kclab.replay import Options, Progress, ReplaySummary, Selection, replay, replay_root, untrusted

app = typer.Typer()


@app.command()
def replay_command(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(help="A capture root or dataset folder, replayed in place."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    definition: DefinitionOption = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", metavar="UUID", help="Only these workloads; repeatable."),
    ] = None,
    run: RunOption = None,
    never_passed: Annotated[
        bool, typer.Option("--never-passed", help="Only captures that never passed.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only captures whose last verdict is no pass.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda (every GPU) or cuda:<n>.")] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes [default: one a GPU, or one a core up to 8]."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="The most one workload may take.")
    ] = 300.0,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Who is wrong: judge both by the reference in float64."),
    ] = False,
    definitions: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With PATH: the folder of its definitions."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="With PATH: let its references run on this machine."),
    ] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Run captured workloads through their references; compare every output element.

    Each verdict is stored as soon as it falls. Without a selection every capture of the store is
    replayed. Exit code: 0 all passed, 1 something differs or broke, 3 nothing to replay, 4 this
    machine lacks what is needed, such as trust in a reference.
    """
    show_range(since, until)
    selection = Selection(
        since=since,
        until=until,
        definitions=tuple(definition or ()),
        workloads=tuple(workload or ()),
        run=run,
        never_passed=never_passed,
        failed=failed,
    )
    options = Options(device=device, jobs=jobs, timeout=timeout, oracle=oracle)
    store = current_store(context)
    with _progress() as progress:
        if path is None:
            summary = replay(store, selection, options, progress)
        else:
            summary = _replay_path(store, path, definitions, trust, selection, options, progress)
    if form is Format.TABLE:
        print_page(summary, path, oracle=oracle)
    else:
        print_verdicts(store, summary, form)
    raise typer.Exit(int(summary.exit_code))


def _replay_path(
    store: Store,
    path: Path,
    definitions: Path | None,
    trust: bool,
    selection: Selection,
    options: Options,
    progress: Progress,
) -> ReplaySummary:
    from kclab.core.trust import trust as trust_reference
    from kclab.dataset.roots import read_root

    root = read_root(path, definitions)
    if trust:
        for found in untrusted(root.definitions.values()):
            note(f"trusting the reference of {found.name} ({found.reference_sha256[:16]})")
            trust_reference(found.reference_sha256, f"{found.name}, replay {path} --trust")
    folder = definitions or next(
        (place for place in (path / "definitions", path.parent / "definitions") if place.is_dir()),
        path,
    )
    how = f"read it, then: kclab definitions trust {folder} (or kclab replay {path} --trust)"
    return replay_root(store, root, selection, options, progress, how_to_trust=how)


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
