"""FC2 commands that hold results against each other or against today: compare, verify."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from kclab.cli.fc2_show import show_gain
from kclab.cli.options import RunArgument
from kclab.cli.output import Column, Format, FormatOption, note, print_rows
from kclab.cli.show import show_ms
from kclab.cli.store import current_store
from kclab.core.errors import NothingMatched


def show_yes(value: int | None) -> str:
    """`yes` or `no`."""
    return "yes" if value else "no"


COMPARE_COLUMNS = (
    Column("config"),
    Column("scope", spare=1),
    Column("first_ratio", "gain before", show=show_gain, right=True),
    Column("second_ratio", "gain after", show=show_gain, right=True),
    Column("first_ms", "ms before", show=show_ms, right=True, spare=4),
    Column("second_ms", "ms after", show=show_ms, right=True, spare=4),
    Column("change", "faster by", show=show_gain, right=True),
    Column("second_verdict", "verdict after", spare=2),
    Column("same_kernel", "kernel", show=lambda same: "same" if same else "other", spare=3),
    Column("same_key", hidden=True),
    Column("workload", hidden=True),
)

VERIFY_COLUMNS = (
    Column("result_id", "result", right=True, spare=1),
    Column("config"),
    Column("holds", show=show_yes),
    Column("accepted", show=show_yes, spare=4),
    Column("same_kernel", "same kernel", show=show_yes, spare=3),
    Column("same_bytes", "same bytes", show=show_yes, spare=2),
    Column("stored_gain", "gain stored", show=show_gain, right=True, spare=5),
    Column("gain", "gain now", show=show_gain, right=True),
    Column("moved", show=lambda moved: "; ".join(moved) or "nothing", wide=True),
    Column("reasons", show=lambda reasons: "; ".join(reasons), wide=True, sparse=True),
)


def register(app: typer.Typer) -> None:
    """Add this module's commands to `kclab fc2`."""
    app.command()(compare)
    app.command()(verify)


def compare(
    context: typer.Context,
    first: RunArgument,
    second: RunArgument,
    form: FormatOption = Format.TABLE,
) -> None:
    """What two runs say of the configs that both measured."""
    from kclab.db.queries.fc2 import compare_runs

    with closing(current_store(context).read()) as connection:
        rows = compare_runs(connection, first, second)
    if not rows:
        raise NothingMatched("the two runs measured no config in common.")
    if not all(row["same_key"] for row in rows):
        note("the runs differ in GPU, driver or cuBLASLt: read their gains, not their times.")
    print_rows(rows, COMPARE_COLUMNS, form)


def verify(
    context: typer.Context,
    results: Annotated[
        list[int] | None,
        typer.Argument(metavar="[RESULT]...", help="Results; by default each workload's best."),
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Measure stored results again: still valid, same kernel, same bytes, same speed?"""
    from dataclasses import asdict

    from kclab.fc2.verify import require_all
    from kclab.fc2.verify import verify as measure_again

    found = measure_again(current_store(context), results or ())
    print_rows([{**asdict(one), "holds": one.holds} for one in found], VERIFY_COLUMNS, form)
    require_all(found)
