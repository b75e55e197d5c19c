"""Everything that a report says, read from a store through its read-only connection."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import NothingMatched
from kclab.core.stats import Sample
from kclab.db.queries.fc2_samples import best_steps, result_samples
from kclab.db.queries.report import (
    Period,
    Row,
    Series,
    failed_verdicts,
    period_environments,
    period_errors,
    timing_series,
    verdict_counts,
)
from kclab.db.queries.runs import RunFilter, list_runs
from kclab.db.queries.verdict_matrix import one_verdict

RUNS_SHOWN = 60
FAILURES_SHOWN = 30
ERRORS_SHOWN = 20
SERIES_SHOWN = 24
POINTS_SHOWN = 60
STRIPS_SHOWN = 12
"""Long lists are cut there, and say so."""

BUDGETS = [n * 2**20 for n in (0, 4, 8, 16, 32, 64)]


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a period."""

    period: Period
    runs: list[Row]
    """All of them, newest first."""
    verdicts: list[Row]
    failures: list[Row]
    """The first verdicts with their outputs; `regressed` where the same passed before."""
    failed: int
    regressed: int
    """How many there are of each."""
    errors: list[Row]
    """The newest."""
    error_count: int
    series: list[Series]
    best: list[Row]
    """FC2 results by workload and budget, of the workloads that the period measured."""
    samples: dict[int, list[Sample]]
    """By result id, of some of the best."""
    environments: list[Row]

    @property
    def slower(self) -> list[Series]:
        """Timings that are proven slower than before."""
        return [one for one in self.series if one.slower]

    @property
    def regressions(self) -> list[Row]:
        """Failures of what passed before, as far as they are written out."""
        return [one for one in self.failures if one["regressed"]]

    @property
    def histories(self) -> list[Series]:
        """What was measured more than once."""
        return [one for one in self.series if len(one.points) > 1]

    @property
    def statuses(self) -> dict[str, int]:
        """How many runs ended how, the most frequent first."""
        return dict(Counter(run["status"] for run in self.runs).most_common())

    def verdicts_with(self, *statuses: str) -> int:
        """How many last verdicts of the period have one of these statuses."""
        return sum(int(row[status] or 0) for row in self.verdicts for status in statuses)


def gather(connection: sqlite3.Connection, period: Period) -> Report:
    """Read a period. Raises NothingMatched where no run started in it."""
    runs = list_runs(connection, RunFilter(since_us=period.since_us, until_us=period.until_us))
    if not runs:
        raise NothingMatched("no run started in that time; `kclab runs list` shows what there is.")
    series = timing_series(connection, period)
    measured = {point["workload"] for one in series for point in one.points[-1:]} - {None}
    best = [row for row in best_steps(connection, BUDGETS) if row["workload"] in measured]
    results = [row["result_id"] for row in best if not row["is_control"]][:STRIPS_SHOWN]
    failed = failed_verdicts(connection, period)
    return Report(
        period,
        runs,
        verdict_counts(connection, period),
        [_failure(connection, row) for row in failed[:FAILURES_SHOWN]],
        len(failed),
        sum(row["regressed"] for row in failed),
        *period_errors(connection, period, ERRORS_SHOWN),
        series,
        best,
        {result: result_samples(connection, result) for result in results},
        period_environments(connection, period),
    )


def _failure(connection: sqlite3.Connection, row: Row) -> dict[str, Any]:
    return {**one_verdict(connection, row["id"]), "regressed": bool(row["regressed"])}
