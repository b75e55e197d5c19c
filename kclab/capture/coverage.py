"""What became of every call that was seen: counted in each process, judged for the whole run."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kclab.db.queries.coverage import OWN_TIME

SEEN = "seen"
"""A call that a definition, or a want of one, was found for."""
SELECTED = "selected"
"""A call that the plan wants."""
CAPTURED = "captured"
"""Stored: its rows are committed, or spooled durably."""
DUPLICATE = "duplicate"
"""The same request, step and variant was captured before."""
NOT_WRITTEN = "not written"
"""Begins the reason of a capture that was taken and could not be stored."""

COPYING = "copying"
"""Outcomes of `OWN_TIME`: what the receipts' stalls add up to, in microseconds."""
WATCHING = "watching"
"""All else: looking at each operator of a selected step."""
STORING = "storing"
"""The writer's CPU time: beside the engine's threads, under the same interpreter lock."""

DISTINCT_REASONS = 24
"""Per definition; messages that name sizes could otherwise grow without end."""
REASON_LENGTH = 200


class Coverage:
    """One process's counters: definition (or what was seen) -> outcome -> calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._changes = 0

    def count(self, definition: str, outcome: str, n: int = 1) -> None:
        """Add `n` calls to an outcome."""
        outcome = outcome[:REASON_LENGTH]
        with self._lock:
            outcomes = self._counts.setdefault(definition, {})
            if outcome not in outcomes and len(outcomes) >= DISTINCT_REASONS:
                outcome = "other reasons"
            outcomes[outcome] = outcomes.get(outcome, 0) + n
            self._changes += 1

    @property
    def changes(self) -> int:
        """Grows with every count: tells whether there is anything new to write."""
        return self._changes

    def snapshot(self) -> dict[str, dict[str, int]]:
        """A copy of all counts."""
        with self._lock:
            return {name: dict(outcomes) for name, outcomes in self._counts.items()}


@dataclass(slots=True)
class DefinitionCoverage:
    """A whole run's counts for one definition, or for one kind of call that has none."""

    name: str
    seen: int = 0
    selected: int = 0
    captured: int = 0
    duplicates: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason -> calls."""

    @property
    def calls(self) -> int:
        """Calls that were met at all, also where no definition was there to see them with."""
        return self.seen or sum(self.skipped.values())

    def reasons(self) -> str:
        """Why calls were skipped, most frequent first; empty when none was."""
        ordered = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
        return "; ".join(f"{reason} ({count})" for reason, count in ordered)


def own_time_us(connection: sqlite3.Connection, run_id: int, kind: str) -> int:
    """What a run spent in kclab on `COPYING`, `WATCHING` or `STORING`, microseconds."""
    (spent,) = connection.execute(
        "SELECT coalesce(sum(count), 0) FROM capture_count"
        " WHERE run_id = ? AND definition = ? AND outcome = ?",
        (run_id, OWN_TIME, kind),
    ).fetchone()
    return int(spent)


def run_coverage(connection: sqlite3.Connection, run_id: int) -> list[DefinitionCoverage]:
    """The counts of all processes of a run, by name; captures are counted from their rows."""
    found: dict[str, DefinitionCoverage] = {}
    for name, outcome, count in connection.execute(
        "SELECT definition, outcome, sum(count) FROM capture_count"
        " WHERE run_id = ? AND definition != ?"
        " GROUP BY definition, outcome ORDER BY definition, outcome",
        (run_id, OWN_TIME),
    ):
        _add(found.setdefault(name, DefinitionCoverage(name)), outcome, count)
    for name, count in connection.execute(
        "SELECT d.name, count(*) FROM capture c JOIN workload w ON w.id = c.workload_id"
        " JOIN definition d ON d.id = w.definition_id WHERE c.run_id = ? GROUP BY d.name",
        (run_id,),
    ):
        # A killed process leaves rows that its counts do not know of.
        found.setdefault(name, DefinitionCoverage(name)).captured = count
    return [found[name] for name in sorted(found)]


def _add(coverage: DefinitionCoverage, outcome: str, count: int) -> None:
    if outcome == SEEN:
        coverage.seen += count
    elif outcome == SELECTED:
        coverage.selected += count
    elif outcome == DUPLICATE:
        coverage.duplicates += count
    elif outcome != CAPTURED:
        coverage.skipped[outcome] = count


def uncaptured(coverage: Sequence[DefinitionCoverage], globs: Sequence[str]) -> list[str]:
    """One sentence for each wish that captured nothing.

    A wish is a `--definition` name or glob (a glob is content with one of its definitions), or a
    definition of which calls were selected.
    """
    captured = [c.name for c in coverage if c.captured]
    by_name = {c.name: c for c in coverage}
    silent = [glob for glob in globs if not any(fnmatchcase(name, glob) for name in captured)]
    sentences = [_why(glob, by_name, coverage) for glob in silent]
    wanted = [c for c in coverage if c.selected and not c.captured]
    return sentences + [
        f"{c.name}: {c.selected} calls selected, none captured: {c.reasons() or 'no reason given'}."
        for c in wanted
        if not any(fnmatchcase(c.name, glob) for glob in silent)
    ]


def _why(
    glob: str, by_name: Mapping[str, DefinitionCoverage], coverage: Sequence[DefinitionCoverage]
) -> str:
    matching = [c for name, c in by_name.items() if fnmatchcase(name, glob)]
    reasons = "; ".join(f"{c.name}: {c.reasons()}" for c in matching if c.skipped)
    if reasons:
        return f"{glob}: nothing captured: {reasons}."
    seen = sum(c.seen for c in matching)
    if seen:
        return f"{glob}: seen {seen} times, never selected; check --steps and --root."
    others = ", ".join(c.name for c in coverage if c.seen or c.skipped)
    return f"{glob}: no such call was seen; seen were: {others or 'none at all'}."
