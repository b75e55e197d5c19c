"""What `kclab runs compare` and `kclab runs diff` print."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer

from kclab.cli.output import Column, Format, console, note, print_rows
from kclab.cli.plots import interval_bar
from kclab.cli.show import short, short_run, show_module
from kclab.core.errors import ExitCode, NothingMatched
from kclab.core.sessions import may_be_slower_by
from kclab.db.queries.compared import Change, Compared, told_counts
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
    *(Column(key, hidden=True) for key in ("gain", "gain_low", "gain_high", "noise", "basis")),
    Column("told_gain", "gain", sparse=True),
    Column("told_noise", "noise", sparse=True),
    Column("plot", "1 = before", sparse=True),
    Column("verdict", hidden=True),
)
DERIVED = ("told_gain", "told_noise", "plot")
"""Columns of the table alone."""

WIDE = ("told_noise", "plot")
WIDE_FROM = 120
"""Narrower terminals get no plot and no noise floor."""


def print_comparison(
    connection: sqlite3.Connection,
    a: sqlite3.Row,
    b: sqlite3.Row,
    form: Format,
    *,
    any_environment: bool,
    everything: bool,
    fail_share: float | None = None,
) -> None:
    """Print what changed from run `a` to run `b`, and end with the exit code that it means.

    With `fail_share`, a slower timing fails only if it may be slower by that share. Raises
    NothingMatched where the environments differ and that was not asked for, or where the two runs
    have nothing in common (no timing whose change could be told, with `fail_share`).
    """
    _check_environments(connection, a, b, any_environment)
    found = compare_runs(connection, int(a["id"]), int(b["id"]))
    shown = [one for one in found if everything or one.change is not Change.SAME]
    print_changes(shown, form)
    counts = Counter(one.change for one in found)
    note(told_counts(counts))
    if not any(one.comparable for one in found):
        raise NothingMatched(
            f"runs {short_run(a['uuid'])} ({a['command']}) and {short_run(b['uuid'])} "
            f"({b['command']}) have no workload, site or measurement in common."
        )
    if fail_share is not None and not any(one.gain_low is not None for one in found):
        raise NothingMatched(
            "no timing is in both runs with samples enough to tell a regression; nothing was held "
            f"to {fail_share:.3g} of its time."
        )
    if any(is_regression(one, fail_share) for one in found):
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def is_regression(one: Compared, share: float | None) -> bool:
    """Whether a change fails a check: it is worse, and a proven slow-down may reach `share`."""
    if one.change is not Change.WORSE or share is None or one.verdict != "SLOW":
        return one.change is Change.WORSE
    return may_be_slower_by(share, one.verdict, one.gain_low)


def print_changes(found: Sequence[Compared], form: Format) -> None:
    """The changes as a table, with plots where there is room; or as JSON or CSV."""
    table = form is Format.TABLE
    left_out = DERIVED if not table else WIDE if console().width < WIDE_FROM else ()
    print_rows(
        told_rows(found) if table else [change_row(one) for one in found],
        [column for column in COLUMNS if column.key not in left_out],
        form,
        empty="nothing changed.",
    )


def told_rows(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """The changes as a table's rows: gains in words, and as intervals on a shared axis."""
    reach = axis_reach([one.gain_low for one in found] + [one.gain_high for one in found])
    rows = [change_row(one) for one in found]
    return [
        {
            **row,
            "told_gain": told_gain(row),
            "told_noise": None if row["noise"] is None else f"{row['noise'] * 100:.1f} %",
            "plot": told_plot(row, reach),
        }
        for row in rows
    ]


def told_gain(row: Mapping[str, Any]) -> str | None:
    """`-8.8 % (-10.4 … -7.2)`: how much faster, with its interval."""
    if row["gain"] is None:
        return None
    middle = f"{(row['gain'] - 1) * 100:+.1f} %"
    if row["gain_low"] is None:
        return middle
    return f"{middle} ({(row['gain_low'] - 1) * 100:+.1f} … {(row['gain_high'] - 1) * 100:+.1f})"


def told_plot(row: Mapping[str, Any], reach: float) -> str | None:
    """The gain's interval around 1; None where there is none."""
    if row["gain_low"] is None:
        return None
    return interval_bar(row["gain_low"], row["gain"], row["gain_high"], (1 - reach, 1 + reach))


def axis_reach(ends: Iterable[float | None]) -> float:
    """How far an axis around 1 reaches so that intervals fit: 2 to 25 %."""
    return min(max((abs(end - 1) for end in ends if end is not None), default=0.02), 0.25) or 0.02


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
