"""What `kclab fc2 history` prints: environment changes, the series as sparklines, the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import typer

from kclab.cli.fc2_show import RESULT_COLUMNS, SCOPE, spared, with_text
from kclab.cli.output import Column, Format, note, print_rows
from kclab.cli.plots import sparkline
from kclab.cli.run_compare import told_gain
from kclab.cli.show import short, show_time
from kclab.core.errors import ExitCode, NothingMatched
from kclab.core.sessions import may_be_slower_by
from kclab.db.queries.fc2_history import series_of

Row = dict[str, Any]

BY_KEY = {column.key: column for column in RESULT_COLUMNS}
WHAT = (
    replace(BY_KEY["measured_us"], hidden=False),
    # A config may have been measured on several workloads.
    replace(BY_KEY["workload"], spare=2),
    replace(BY_KEY["shape"], spare=3),
    replace(BY_KEY["numerics"], spare=4),
    BY_KEY["ratio"],
)
SHOWN = {column.key for column in WHAT} | {"config"}
REST = (
    replace(BY_KEY["config"], hidden=True),  # one asked for it by name
    *spared([column for column in RESULT_COLUMNS if column.key not in SHOWN], parity=1),
)
BEFORE = Column("told_gain", "vs. before")
TREND = (
    Column("trend", sparse=True),
    *(Column(key, hidden=True) for key in ("gain", "gain_low", "gain_high", "noise", "basis")),
    Column("changed", hidden=True),
)


def print_history(rows: Sequence[Row], form: Format, fail_share: float | None) -> None:
    """Print a config's measurements, newest first; end as `fail_share` asks.

    Raises NothingMatched where a regression is asked for and nothing could be compared.
    """
    for row in rows:
        if row["changed"]:
            note(f"before result {row['result_id']} ({show_time(row['measured_us'])}) changed: "
                 f"{row['changed']}")  # fmt: skip
    shown = [{**with_text(row), "told_gain": told_gain(row)} for row in rows]
    derived = (BEFORE,) if form is Format.TABLE else ()
    print_rows(shown, [*WHAT, SCOPE, *derived, *TREND, *REST], form)
    for series in _series(rows):
        if len(series) > 1:
            note(told_series(series))
    if fail_share is not None:
        _fail_on_regression(rows, fail_share)


def _series(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each line, oldest first."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in reversed(rows):
        found.setdefault(series_of(row), []).append(row)
    return list(found.values())


def told_series(series: Sequence[Row]) -> str:
    """`a1b2c3d4 gemm ▁▅█ +2.7 % … +3.5 %`: gains from the oldest to the newest."""
    gains = [row["ratio"] for row in series]
    known = [gain for gain in gains if gain is not None] or [1.0]
    ends = f"{(min(known) - 1) * 100:+.1f} … {(max(known) - 1) * 100:+.1f} %"
    return f"{short(series[0]['workload'])} {series[0]['scope']}  {sparkline(gains)}  gain {ends}"


def _fail_on_regression(rows: Sequence[Row], share: float) -> None:
    newest = [series[-1] for series in _series(rows)]
    if not any(row["gain_low"] is not None for row in newest):
        raise NothingMatched("no series has two measurements that could be compared.")
    if any(may_be_slower_by(share, row["trend"], row["gain_low"]) for row in newest):
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
