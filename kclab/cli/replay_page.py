"""What `kclab replay` shows: a line for each definition, then each failure and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from kclab.cli.output import Column, Format, heading, note, print_rows, printable
from kclab.cli.show import short, short_run
from kclab.core.units import format_duration
from kclab.db.queries.replays import replay_verdicts
from kclab.db.store import Store
from kclab.db.verdicts import OracleVerdict, ReplayRow
from kclab.replay import ReplaySummary

SHOWN = 12
"""Failures and weak passes written out; the others are counted."""
SKIPPED_SHOWN = 3
"""Skipped workloads named for each reason."""

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def _count(value: int) -> str:
    return f"{value:,}" if value else "-"


COLUMNS = (
    Column("definition", wide=True),
    Column("status"),
    Column("passed", show=_count, right=True),
    Column("failed", show=_count, right=True),
    Column("error", show=_count, right=True),
    Column("skipped", show=_count, right=True),
    Column("max_abs", "max error", show=number, right=True),
    Column("relative_rms", "rel. RMS", show=number, right=True),
    Column("seconds", "time", show=format_duration, right=True),
)
ORACLE_COLUMN = Column("oracle", "who is off", wide=True)

VERDICT_COLUMNS = tuple(
    Column(key)
    for key in (
        "workload", "capture", "definition", "status", "reason", "warning", "origin", "device",
        "seconds", "started_us", "output", "passed", "policy", "rtol", "atol", "elements",
        "mismatched", "max_abs", "rms", "relative_rms", "worst_index", "worst_engine",
        "worst_reference", "oracle", "engine_max_ulp", "engine_rms_ulp", "reference_max_ulp",
        "reference_rms_ulp", "bound_ulp", "metrics", "oracle_metrics",
    )
)  # fmt: skip


def print_verdicts(store: Store, summary: ReplaySummary, form: Format) -> None:
    """Every output of every verdict as JSON or CSV."""
    _print_notes(summary)
    with closing(store.read()) as connection:
        rows = replay_verdicts(connection, summary.run_id)
    print_rows(rows, VERDICT_COLUMNS, form)
    note(_ending(summary))


def print_page(summary: ReplaySummary, path: Path | None, *, oracle: bool) -> None:
    """The table by definition, then the failures, then the sentence that sums it up."""
    _print_notes(summary)
    columns = (*COLUMNS, ORACLE_COLUMN) if oracle else COLUMNS
    tallies = sorted(summary.definitions.values(), key=lambda tally: tally.definition)
    rows = [{c.key: getattr(t, c.key, None) for c in COLUMNS} for t in tallies]
    for row, tally in zip(rows, tallies, strict=True):
        row["status"] = _status(row)
        counts = sorted(tally.oracle.items())
        row["oracle"] = ", ".join(f"{who} {count}" for who, count in counts) or None
    print_rows(rows, columns, Format.TABLE)
    for failure in summary.failures[:SHOWN]:
        _print_failure(failure, short_run(summary.run), path, oracle)
    not_shown = summary.count("failed") + summary.count("error") - SHOWN
    if not_shown > 0:
        where = f"kclab runs show {short_run(summary.run)}"
        typer.echo(f"\n… and {not_shown:,} more that did not pass: {where}")
    _print_warned(summary)
    _print_skipped(summary)
    note(_ending(summary))


def _status(row: Mapping[str, Any]) -> str:
    for status in ("failed", "error", "passed"):
        if row[status]:
            return status
    return "skipped"


def _print_notes(summary: ReplaySummary) -> None:
    for text in summary.notes:
        note(f"note: {text}")


def _print_failure(row: ReplayRow, run: str, path: Path | None, oracle: bool) -> None:
    heading(f"{row.status.upper()}  {row.definition}  {_name(row)}")
    lines = [f"{o.name}: {o.reason}" for o in row.outputs if not o.passed]
    if not lines and row.reason:
        lines = [row.reason]
    lines += [f"{row.outputs[i].name}: {oracle_line(v)}" for i, v in enumerate(row.oracle)]
    if row.origin and row.origin not in (row.reason or ""):
        lines.append(f"at {row.origin}")
    lines += [f"next: {step}" for step in _next_steps(row, run, path, oracle)]
    for line in lines:
        typer.echo(f"  {printable(line)}")


def _next_steps(row: ReplayRow, run: str, path: Path | None, oracle: bool) -> list[str]:
    steps = []
    where = f" {path}" if path else ""
    if row.status == "failed" and not oracle and row.outputs:
        steps.append(f"kclab replay{where} --workload {short(row.subject)} --oracle")
    if path is None and (row.traceback or row.status == "failed"):
        steps.append(f"kclab workloads show {short(row.subject)}")
    if row.traceback:
        steps.append(f"kclab runs show {run} --format json  (the traceback, and what it printed)")
    return steps


def oracle_line(verdict: OracleVerdict) -> str:
    """Who is off, with both distances to the float64 truth."""
    if verdict.verdict == "undecided":
        return f"oracle undecided: {(verdict.metrics or {}).get('why', 'no truth to compare with')}"
    texts = {
        "engine": "the engine is off, the reference is not",
        "reference": "the reference is off, the engine is not",
        "both": "both are off",
        "neither": "neither is off by more than rounding",
    }
    if verdict.engine_rms_ulp is None:
        differs = verdict.metrics or {}
        return (
            f"{texts[verdict.verdict]}; elements unlike the float64 run's:"
            f" engine {differs.get('engine_differs')}, reference {differs.get('reference_differs')}"
        )
    distances = (
        f"distance to float64 in ulp (RMS / max): engine {_ulps(verdict, 'engine')},"
        f" reference {_ulps(verdict, 'reference')}"
    )
    bound = f"; rounding explains about {verdict.bound_ulp:.3g}" if verdict.bound_ulp else ""
    details = [_detail(side, verdict) for side in ("engine", "reference")]
    return f"{texts[verdict.verdict]}; {distances}{bound}{''.join(details)}"


def _detail(side: str, verdict: OracleVerdict) -> str:
    found = (verdict.metrics or {}).get(side)
    if not found:
        return ""
    return (
        f"; {side}: {found['why']}, worst at {found['index']}: {found['value']}"
        f" where float64 gives {found['truth']}"
    )


def _ulps(verdict: OracleVerdict, side: str) -> str:
    values = (getattr(verdict, f"{side}_{kind}_ulp") for kind in ("rms", "max"))
    return " / ".join("not finite" if value is None else f"{value:.3g}" for value in values)


def _name(row: ReplayRow) -> str:
    """The workload's short uuid; a refused line that has none shows where it is in its reason."""
    return short(row.subject) if UUID.fullmatch(row.subject) else ""


def _print_warned(summary: ReplaySummary) -> None:
    total = sum(tally.warned for tally in summary.definitions.values())
    if not total:
        return
    heading(f"{total:,} {'pass proves' if total == 1 else 'passes prove'} little")
    for row in summary.warned[:SHOWN]:
        typer.echo(f"  {row.definition}  {_name(row)}  {printable(row.warning or '')}")
    if total > SHOWN:
        typer.echo(f"  … and {total - SHOWN:,} more")


def _print_skipped(summary: ReplaySummary) -> None:
    for reason, rows in summary.skipped.items():
        heading(f"{len(rows):,} skipped: {reason}")
        for row in rows[:SKIPPED_SHOWN]:
            where = f"  at {row.origin}" if row.origin else ""
            typer.echo(f"  {row.definition}  {_name(row)}{printable(where)}")
        if len(rows) > SKIPPED_SHOWN:
            typer.echo(f"  … and {len(rows) - SKIPPED_SHOWN:,} more")


def _ending(summary: ReplaySummary) -> str:
    return f"{summary.sentence} on {summary.device}; run {short_run(summary.run)}"
