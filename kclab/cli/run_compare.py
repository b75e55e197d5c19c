"""What `kclab runs compare` and `kclab runs diff` print."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer

from kclab.cli.output import Column, Format, note, print_rows
from kclab.cli.show import short, short_run, show_module
from kclab.core.errors import ExitCode, NothingMatched
from kclab.db.queries.compared import Change, Compared
from kclab.db.queries.run_compare import compare_runs
from kclab.db.queries.run_diff import run_differences, run_facts

COLUMNS = (
    Column("change"),
    Column("kind", hidden=True),
    Column("name", "definition", first=True),
    Column("workload", show=short, sparse=True),
    Column("place", "where", middle=True, sparse=True),
    Column("step", right=True, sparse=True),
    Column("rank", right=True, sparse=True),
    Column("before", wide=True),
    Column("after", wide=True),
)


def print_comparison(
    connection: sqlite3.Connection,
    a: sqlite3.Row,
    b: sqlite3.Row,
    form: Format,
    *,
    any_environment: bool,
    everything: bool,
) -> None:
    """Print what changed from run `a` to run `b`, and end with the exit code that it means.

    Raises NothingMatched where the environments differ and that was not asked for, or where the
    two runs have nothing in common.
    """
    _check_environments(connection, a, b, any_environment)
    found = compare_runs(connection, int(a["id"]), int(b["id"]))
    shown = [one for one in found if everything or one.change is not Change.SAME]
    print_rows([change_row(one) for one in shown], COLUMNS, form, empty="nothing changed.")
    counts = Counter(one.change for one in found)
    note(", ".join(f"{counts[change]:,} {change}" for change in Change))
    if not any(one.comparable for one in found):
        raise NothingMatched(
            f"runs {short_run(a['uuid'])} ({a['command']}) and {short_run(b['uuid'])} "
            f"({b['command']}) have no workload, site or measurement in common."
        )
    if counts[Change.WORSE]:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _check_environments(
    connection: sqlite3.Connection, a: sqlite3.Row, b: sqlite3.Row, any_environment: bool
) -> None:
    told = environment_changes(connection, a, b)
    if not told:
        return
    if not any_environment:
        raise NothingMatched(
            f"the runs' environments differ ({told}), so differences may be theirs; "
            "--any-env compares all the same."
        )
    note(f"across environments: {told}")


def environment_changes(connection: sqlite3.Connection, a: sqlite3.Row, b: sqlite3.Row) -> str:
    """`torch 2.13.0 / 2.14.0`: how two runs' environments differ; empty where they are one."""
    if a["environment_id"] == b["environment_id"]:
        return ""
    facts = [{"environment": run_facts(connection, run)["environment"]} for run in (a, b)]
    return ", ".join(
        f"{row['name']} {told_value(row['a'])} / {told_value(row['b'])}"
        for row in run_differences(*facts)
    )


def change_row(one: Compared) -> dict[str, Any]:
    """A change as a table's row."""
    fields = asdict(one)
    return {**fields, "place": show_module(fields) or None}


def print_differences(a: str, b: str, rows: Sequence[Mapping[str, Any]], form: Format) -> None:
    """Print the rows of `run_differences` for the runs with uuids `a` and `b`."""
    columns = (
        Column("area"),
        Column("name", wide=True),
        Column("a", short_run(a), show=told_value, wrap=True),
        Column("b", short_run(b), show=told_value, wrap=True),
        Column("differs", hidden=True),
    )
    print_rows(rows, columns, form, empty="the two runs do not differ.")


def told_value(value: Any) -> str:
    """A fact as one reads it: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
