"""Timing two ways of doing the same work in alternating pairs, and keeping the samples as rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kclab.core.stats import Comparison, Sample, compare_arms, median
from kclab.db.connection import writing
from kclab.db.runs import ActiveRun

Work = Callable[[], None]
BASELINE, KCLAB = "A", "B"


@dataclass(slots=True)
class Result:
    """One comparison: what was timed, against what, and every sample."""

    name: str
    baseline: str
    """What arm A is, in words."""
    target: str
    """What the ratio is to reach, in words."""
    samples: list[Sample] = field(default_factory=list)
    detail: dict[str, object] = field(default_factory=dict)

    def times(self, arm: str) -> list[float]:
        """An arm's times in milliseconds, in order."""
        return [sample.ms for sample in self.samples if sample.arm == arm]

    def comparison(self) -> Comparison:
        """kclab against the baseline, by pairs; a ratio above 1 means kclab is faster."""
        return compare_arms(self.samples, BASELINE, KCLAB)


def seconds(work: Work) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def paired(
    name: str,
    baseline: str,
    target: str,
    baseline_seconds: Callable[[], float],
    kclab_seconds: Callable[[], float],
    *,
    pairs: int,
    warm_up: int = 1,
) -> Result:
    """Time both ways `pairs` times, turn about (AB, BA, …); each callable returns its seconds."""
    result = Result(name, baseline, target)
    arms = ((BASELINE, baseline_seconds), (KCLAB, kclab_seconds))
    for _ in range(warm_up):
        for _arm, timed in arms:
            timed()
    for number in range(pairs):
        for position, (arm, timed) in enumerate(arms if number % 2 == 0 else arms[::-1]):
            result.samples.append(Sample(number, position, arm, timed() * 1e3))
    return result


def store_result(run: ActiveRun, result: Result) -> None:
    """Keep a comparison and its samples in the benchmark run's store."""
    comparison = result.comparison()
    ratio = comparison.ratio
    with writing(run.connection) as connection:
        cursor = connection.execute(
            "INSERT INTO measurement(run_id, name, baseline_ms, candidate_ms, ratio, ratio_low,"
            " ratio_high, pairs, verdict, detail) VALUES (?,?,?,?,?,?,?,?,?,?)",
            (
                run.id,
                result.name,
                median(result.times(BASELINE)),
                median(result.times(KCLAB)),
                ratio.estimate,
                _finite(ratio.low),
                _finite(ratio.high),
                comparison.pairs,
                comparison.verdict.value,
                json.dumps({"baseline": result.baseline, **result.detail}),
            ),
        )
        connection.executemany(
            "INSERT INTO timing_sample(measurement_id, round, position, arm, ms)"
            " VALUES (?,?,?,?,?)",
            [(cursor.lastrowid, s.round, s.position, s.arm, s.ms) for s in result.samples],
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
