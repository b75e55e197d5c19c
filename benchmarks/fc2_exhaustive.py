"""Does the race miss anything? An exhaustive pass over the same boundary, in the same process.

    python -m benchmarks.fc2_exhaustive --shape 512x5376x14336 --dtype bf16

The race (the anytime search with a time budget) goes first and pays for loading kernels; then every
distinct launch is timed. Both finalists are measured again together, in mirrored rounds on samples
of their own. Prints a table on stderr and one JSON object on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from kclab.core.stats import Comparison, compare_arms
from kclab.fc2.backends import load_backend
from kclab.fc2.bench import CONTROL_ARM, Bench
from kclab.fc2.boundary import synthetic_boundary
from kclab.fc2.problem import WORKSPACE_BUDGETS, Precision, Problem, parse_shape
from kclab.fc2.search import Event, Options, Search
from kclab.fc2.search.finals import Result
from kclab.fc2.search.pool import Entry
from kclab.fc2.search.terms import SCREENED

APART = 0.01
"""What the exhaustive pass's finalist may be faster by, beyond the A/A floor."""
SHARE = 1 / 5
"""What the race may take of the exhaustive pass's time."""
ROUNDS = 60
SPENT = ("launches", "series", "space", "examine")
"""Folding, screening, listing the space, and looking at outputs: where a search's time goes."""


@dataclass(slots=True)
class Searched:
    """One search, how long it took and what it went through."""

    name: str
    search: Search
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds from the start until each stage ended."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds inside each call of `SPENT`."""

    @property
    def finalist(self) -> Result:
        """The fastest exact config; B0 where none is faster."""
        found = self.search.outcome.exact
        assert found is not None, "B0 itself is exact, or there is nothing to compare"
        return found

    def counts(self) -> dict[str, int]:
        """Configs by status, and launches that were timed."""
        entries = self.search.pool.entries.values()
        found = Counter(entry.status for entry in entries)
        timed = sum(entry.samples > 0 for entry in entries)
        samples = sum(entry.samples for entry in entries)
        return {"configs": len(entries), **found, "timed": timed, "samples": samples}


class Forget:
    """A sink that keeps nothing: benchmarks compare searches, a sweep keeps the record."""

    def enumerated(self, budget: int, requested: int, returned: int, error: str | None) -> None:
        """Ignored."""

    def entries(self, entries: Sequence[Entry]) -> None:
        """Ignored."""

    def results(self, results: Sequence[Result]) -> None:
        """Ignored."""


def main() -> None:
    """Parse, search twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="512x5376x14336")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp8_e4m3"])
    parser.add_argument("--fast-accumulation", action="store_true")
    parser.add_argument("--backend", default="cublaslt")
    parser.add_argument("--race-seconds", type=float, default=12.0)
    parser.add_argument("--exhaustive-seconds", type=float, default=420.0)
    given = parser.parse_args()
    problem = Problem(Precision(given.dtype), *parse_shape(given.shape), given.fast_accumulation)
    backend = load_backend(given.backend)
    boundary = synthetic_boundary(problem, 440_420, backend.device)
    bench = Bench(backend, problem, boundary.operands, max(WORKSPACE_BUDGETS))
    print(json.dumps(compare(bench, given.race_seconds, given.exhaustive_seconds), indent=2))


def compare(bench: Bench, race_seconds: float, exhaustive_seconds: float) -> dict[str, Any]:
    """Both searches, and their finalists against each other."""
    race = searched("race", bench, Options(seconds=race_seconds))
    whole = searched("exhaustive", bench, Options(seconds=exhaustive_seconds, exhaustive=True))
    report: dict[str, Any] = {
        "shape": bench.problem.shape,
        "numerics": bench.problem.numerics,
        "gpu": bench.backend.facts()["gpu"],
        "complete": whole.search.outcome.complete,
        **{each.name: _told(each) for each in (race, whole)},
    }
    report["share_of_time"] = race.seconds / whole.seconds
    report["finalists"] = duel(bench, race.finalist, whole)
    report["holds"] = {
        "exhaustive pass complete": report["complete"],
        "not more than 1 % apart beyond the A/A floor": report["finalists"]["near"],
        "race in a fifth of the time": report["share_of_time"] <= SHARE,
    }
    _table(report)
    return report


def searched(name: str, bench: Bench, options: Options) -> Searched:
    """One search of a bench, telling on stderr how far it is."""
    stages: dict[str, float] = {}

    def watch(event: Event) -> None:
        if event.text != SCREENED:
            stages[event.stage] = event.seconds
            print(f"{name}: {event.stage}, {event.seconds:.1f} s: {event.text}", file=sys.stderr)

    started = time.monotonic()
    search = Search(bench, options, Forget(), watch)
    spent = dict.fromkeys(SPENT, 0.0)
    with ExitStack() as stack:
        for owner, call in zip(
            (bench.gemm, bench.clock, bench.gemm, search.pool), SPENT, strict=True
        ):
            stack.enter_context(_clocked(owner, call, spent))
        search.run()
    return Searched(name, search, time.monotonic() - started, stages, spent)


@contextmanager
def _clocked(owner: Any, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Add up the time inside an object's method; an iterator's items are made inside it."""
    method = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        started = time.monotonic()
        found = method(*arguments)
        found = list(found) if isinstance(found, Iterator) else found
        spent[name] += time.monotonic() - started
        return found

    with patch.object(owner, name, timed):
        yield


def duel(bench: Bench, of_race: Result, whole: Searched) -> dict[str, Any]:
    """The exhaustive pass's finalist against the race's, on fresh samples."""
    pool, finals = whole.search.pool, whole.search.finals
    pool.admit([of_race.candidate])
    left, right = (_raced(pool.entries[r.config]) for r in (of_race, whole.finalist))
    results = finals.judge([left, right], "duel", fewest=ROUNDS, most=2 * ROUNDS)
    gains = {r.config.text: _gain(r) for r in results}
    found = {"race": left.name, "exhaustive": right.name, "against_b0": gains}
    if left is right:
        return {**found, "same_launch": True, "near": True}
    told = _against(results, left, right, bench)
    near = told.ratio.estimate - 1 <= APART + told.floor
    return {
        **found,
        "same_launch": False,
        "race_over_exhaustive": told.ratio.estimate,
        "interval": [told.ratio.low, told.ratio.high],
        "floor": told.floor,
        "verdict": str(told.verdict),
        "rounds": told.pairs,
        "near": near,
    }


def _raced(entry: Entry) -> Entry:
    return entry.folded_into or entry


def _against(results: Sequence[Result], left: Entry, right: Entry, bench: Bench) -> Comparison:
    """The right one's ratio of times, left / right: above 1 the exhaustive pass found better."""
    samples = {sample for result in results for sample in result.samples}
    own = bench.control.candidate.config
    names = [CONTROL_ARM if entry.config == own else entry.name for entry in (left, right)]
    return compare_arms(sorted(samples, key=lambda s: (s.round, s.position)), *names)


def _gain(result: Result) -> dict[str, Any]:
    ratio = result.algorithm.ratio
    return {
        "gain": ratio.estimate - 1,
        "interval": [ratio.low - 1, ratio.high - 1],
        "verdict": str(result.algorithm.verdict),
        "ms": result.b_ms,
        "exact": result.exact,
    }


def _told(each: Searched) -> dict[str, Any]:
    return {
        "seconds": each.seconds,
        "stages": each.stages,
        "spent": each.spent,
        **each.counts(),
        "config": each.finalist.config.text,
        **_gain(each.finalist),
    }


def _table(report: dict[str, Any]) -> None:
    columns = ("seconds", "configs", "folded", "timed", "config", "gain", "verdict")
    lines = [["", *columns]]
    for name in ("race", "exhaustive"):
        row = report[name]
        numbers = [f"{row['seconds']:.1f}", *(str(row.get(c, 0)) for c in columns[1:4])]
        gain = f"{row['gain'] * 100:+.2f} %"
        lines.append([name, *numbers, row["config"], gain, row["verdict"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=sys.stderr)
    for claim, holds in report["holds"].items():
        print(f"{'yes' if holds else 'NO ':4}{claim}", file=sys.stderr)


if __name__ == "__main__":
    main()
