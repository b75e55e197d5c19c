"""The FC2 commands that only look: best, pareto, candidates, history, explain, reproduce."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from kclab.cli.fc2_options import MIB, Dtype
from kclab.cli.fc2_show import (
    BEST_COLUMNS,
    CANDIDATE_COLUMNS,
    PARETO_COLUMNS,
    note_drift,
    with_text,
)
from kclab.cli.options import (
    LimitOption,
    RegressionOption,
    RunArgument,
    show_size,
    size_option,
)
from kclab.cli.output import Format, FormatOption, note, print_fields, print_rows
from kclab.cli.store import current_store
from kclab.core.errors import NothingMatched

BUDGETS = [n * MIB for n in (0, 4, 8, 16, 32, 64)]

WorkspaceLimit = Annotated[
    int | None, size_option("--workspace", help="Configs that need at most this much.")
]
AnyOption = Annotated[
    bool,
    typer.Option("--any", "--all", help="Also configs whose bytes differ from the baseline's."),
]
DtypeFilter = Annotated[Dtype | None, typer.Option("--dtype", help="Only these operands.")]
WorkloadFilter = Annotated[
    str | None, typer.Option("--workload", metavar="UUID", help="Only this workload.")
]
GpuFilter = Annotated[str | None, typer.Option("--gpu", help="Only GPUs with this in their name.")]
ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Nine numbers joined by ':', or JSON.")
]
ResultArgument = Annotated[int, typer.Argument(metavar="RESULT", help="A result's number.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands to `kclab fc2`."""
    for command in (best, pareto, candidates, history, explain, reproduce):
        app.command()(command)


def best(
    context: typer.Context,
    workspace: WorkspaceLimit = None,
    any_: AnyOption = False,
    dtype: DtypeFilter = None,
    workload: WorkloadFilter = None,
    gpu: GpuFilter = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """The best known config of each workload and GPU, from the database."""
    from kclab.db.queries.fc2 import best_results

    show_size("workspace", workspace)
    with closing(current_store(context).read()) as connection:
        rows = best_results(
            connection,
            workspace=workspace,
            inexact=any_,
            precision=dtype.value if dtype else None,
            workload=workload,
            gpu=gpu,
        )
    if not rows:
        raise NothingMatched("no measured config; run kclab fc2 sweep, or loosen the filters.")
    print_rows([with_text(row) for row in rows], BEST_COLUMNS, form)
    note_drift(rows)


def pareto(
    context: typer.Context,
    any_: AnyOption = False,
    dtype: DtypeFilter = None,
    workload: WorkloadFilter = None,
    gpu: GpuFilter = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """The best config within each workspace budget from 0 to 64 MiB."""
    from kclab.db.queries.fc2 import pareto as by_budget

    with closing(current_store(context).read()) as connection:
        rows = by_budget(
            connection,
            BUDGETS,
            inexact=any_,
            precision=dtype.value if dtype else None,
            workload=workload,
            gpu=gpu,
        )
    if not rows:
        raise NothingMatched("no measured config; run kclab fc2 sweep, or loosen the filters.")
    rows.sort(key=lambda row: (row["workload"], row["budget"]))
    print_rows([with_text(row) for row in rows], PARETO_COLUMNS, form)


def candidates(
    context: typer.Context,
    run: RunArgument = "last",
    limit: LimitOption = 50,
    form: FormatOption = Format.TABLE,
) -> None:
    """Every config that a run tried, fastest first, and why the others were not raced."""
    from kclab.db.queries.fc2 import run_candidates
    from kclab.db.queries.fc2_runs import run_that_tried

    with closing(current_store(context).read()) as connection:
        rows = run_candidates(connection, run_that_tried(connection, run))
    if len(rows) > limit:
        note(f"the first {limit} of {len(rows)}; --limit shows more.")
    print_rows(rows[:limit], CANDIDATE_COLUMNS, form)


def history(
    context: typer.Context,
    config: ConfigArgument,
    fail_on_regression: RegressionOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Every measurement of one config, newest first, each against the one before it.

    Gains over the heuristic's choice are compared round by round, so that clocks and temperatures
    of different days cancel. With --fail-on-regression the newest of each series decides: exit
    code 1 where one regressed, 3 where none could be compared.
    """
    from kclab.cli.fc2_history import print_history
    from kclab.db.queries.fc2_history import config_trend, last_fate
    from kclab.fc2.config import parse_config

    with closing(current_store(context).read()) as connection:
        key = parse_config(config).key
        rows = config_trend(connection, key)
        if not rows:
            fate = last_fate(connection, key) or "kclab fc2 candidates lists what was tried"
            raise NothingMatched(f"config {config} was never measured here: {fate}.")
    print_history(rows, form, fail_on_regression)


def explain(
    context: typer.Context, config: ConfigArgument, form: FormatOption = Format.TABLE
) -> None:
    """What a config is: its knobs in words, what it launches, waves, and how near the roofline."""
    from kclab.fc2.config import parse_config
    from kclab.fc2.explain import explain_config

    with closing(current_store(context).read()) as connection:
        print_fields(explain_config(connection, parse_config(config)), form)


def reproduce(context: typer.Context, result: ResultArgument) -> None:
    """Print the one command that measures a stored result again."""
    from kclab.db.queries.fc2 import one_result

    with closing(current_store(context).read()) as connection:
        row = one_result(connection, result)
    typer.echo(
        f"kclab fc2 selected {row['workload']} --backend {row['backend']} "
        f"--candidate {row['config']} --workspace {row['supplied_workspace']}"
        f"{' --hot' if row['hot'] else ''}"
    )


app = typer.Typer(no_args_is_help=True)
register(app)
