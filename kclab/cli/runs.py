"""`kclab runs`: list, show and compare runs; `run_changes` has what labels and removes them."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import Annotated

import typer

from kclab.cli import run_changes
from kclab.cli.options import (
    LimitOption,
    RegressionOption,
    RunArgument,
    SinceOption,
    UntilOption,
    show_range,
)
from kclab.cli.output import (
    Column,
    Format,
    FormatOption,
    choose_columns,
    note_rest,
    only_columns,
    print_rows,
)
from kclab.cli.show import dated, short_run, show_time
from kclab.cli.store import current_store
from kclab.core.units import format_duration
from kclab.db.queries.runs import RunFilter, count_runs, find_run, list_runs

app = typer.Typer(no_args_is_help=True, help="List, show, compare and label runs.")


class Status(StrEnum):
    """What a run can have come to."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    EMPTY = "empty"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    STALE = "stale"


class Sort(StrEnum):
    """What runs can be sorted by; a test holds it equal to the query's own table."""

    STARTED = "started"
    FINISHED = "finished"
    TOOK = "took"
    COMMAND = "command"
    STATUS = "status"


COLUMNS = (
    Column("uuid", "run", show=short_run),
    Column("command"),
    Column("mode", hidden=True),
    Column("status"),
    Column("started", "started_at", hidden=True),
    Column("started_us", "started", show=show_time),
    Column("finished", "finished_at", hidden=True),
    Column("finished_us", "finished", show=show_time, hidden=True),
    Column("took_us", "took", show=lambda us: format_duration(us / 1e6) if us else "-", right=True),
    Column("exit_code", "exit", right=True, hidden=True),
    Column("tags", show=lambda tags: " ".join(tags) or "-", sparse=True, wide=True),
    Column("summary", wide=True),
    Column("note", hidden=True, wide=True),
    Column("host", hidden=True),
    Column("git_commit", "commit", show=lambda sha: sha[:10], hidden=True),
    Column("git_dirty", "dirty", show=lambda dirty: "dirty" if dirty else "clean", hidden=True),
    Column("gpu", hidden=True),
    Column("torch", hidden=True),
    Column("environment", hidden=True),
)


TagsOption = Annotated[
    list[str] | None, typer.Option(help="Only with this tag; repeatable, all must be there.")
]


@app.command("list")
def list_command(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Option(help="Only this command; repeatable.")
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only this status; repeatable.")
    ] = None,
    tag: TagsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = 50,
    sort: Annotated[Sort, typer.Option(help="Largest or newest first.")] = Sort.STARTED,
    reverse: Annotated[bool, typer.Option("--reverse", help="Smallest or oldest first.")] = False,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns to show, in this order.")
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """List runs, newest first."""
    show_range(since, until)
    chosen = choose_columns(COLUMNS, columns)
    wanted = RunFilter(
        commands=command or (),
        statuses=[one.value for one in status or ()],
        tags=tag or (),
        since_us=since,
        until_us=until,
        sort=sort.value,
        ascending=reverse,
        limit=limit,
    )
    with closing(current_store(context).read()) as connection:
        rows = [dated(row, "started", "finished") for row in list_runs(connection, wanted)]
        total = count_runs(connection, wanted) if len(rows) == limit else len(rows)
    if columns is not None:
        rows = only_columns(rows, chosen)
    print_rows(rows, chosen, form, empty="no run matches.")
    note_rest(len(rows), total, "runs")


@app.command()
def show(context: typer.Context, run: RunArgument, form: FormatOption = Format.TABLE) -> None:
    """Show one run: parameters, environment, what it produced, errors, what to do next."""
    from kclab.cli.run_page import print_run
    from kclab.db.queries.run_details import run_details

    with closing(current_store(context).read()) as connection:
        details = run_details(connection, find_run(connection, run))
    print_run(details, form)


@app.command()
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="The run to compare with (before).")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run in question (after).")],
    any_env: Annotated[
        bool, typer.Option("--any-env", help="Compare although the environments differ.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show what stayed the same, too.")
    ] = False,
    fail_on_regression: RegressionOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say what got better, worse, appeared or vanished from run A to run B.

    Timings are compared by each run's rounds against its own control where there are some, else by
    their distributions. Exit code 1 when something got worse, 3 when the two have nothing in
    common; with --fail-on-regression also when no timing could be compared.
    """
    from kclab.cli.run_compare import print_comparison

    with closing(current_store(context).read()) as connection:
        first, second = find_run(connection, a), find_run(connection, b)
        print_comparison(
            connection,
            first,
            second,
            form,
            any_environment=any_env,
            everything=everything,
            fail_share=fail_on_regression,
        )


@app.command()
def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="One run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run.")],
    everything: Annotated[bool, typer.Option("--all", help="Show what is the same, too.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say what differs between two runs in parameters and environment."""
    from kclab.cli.run_compare import print_differences
    from kclab.db.queries.run_diff import run_differences, run_facts

    with closing(current_store(context).read()) as connection:
        first, second = find_run(connection, a), find_run(connection, b)
        rows = run_differences(
            run_facts(connection, first), run_facts(connection, second), everything=everything
        )
    print_differences(first["uuid"], second["uuid"], rows, form)


run_changes.register(app)
