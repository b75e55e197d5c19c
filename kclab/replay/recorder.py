"""The recorder of verdicts: subjects go to the workers, a committed row comes of each.

A subject whose reference may not run, or that something decided already, gets its row unjudged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from kclab.core.definition import Definition
from kclab.core.errors import ReferenceUntrusted
from kclab.core.times import now_us
from kclab.core.trust import require_trusted
from kclab.db.connection import writing
from kclab.db.runs import ActiveRun, add_environment
from kclab.db.verdicts import ReplayRow, add_replay
from kclab.replay.pool import Pool
from kclab.replay.subject import Decided, Subject
from kclab.replay.summary import ReplaySummary
from kclab.replay.task import Outcome, Task

Progress: TypeAlias = Callable[[int, int, ReplayRow], None]
"""Called after each verdict with (how many fell, how many there are, the verdict)."""


class Recorder:
    """Sends subjects to the workers and turns what comes back into committed rows.

    `how_to_trust` ends the reason of a row whose reference is not trusted.
    """

    def __init__(
        self,
        active: ActiveRun,
        pool: Pool,
        total: int,
        progress: Progress | None,
        *,
        oracle: bool,
        how_to_trust: str | None = None,
    ) -> None:
        self.active = active
        self.pool = pool
        self.oracle = oracle
        self.progress = progress
        self.how_to_trust = how_to_trust
        self.summary = ReplaySummary(active.uuid, active.id, total=total)
        self._under_way: dict[int, Subject] = {}
        self._trust: dict[str, Decided | None] = {}
        self._done = 0
        self._kept: list[tuple[Subject, ReplayRow]] | None = None

    def judge(
        self, subjects: Iterable[Subject], *, keep: bool = False
    ) -> list[tuple[Subject, ReplayRow]]:
        """Record a verdict on every subject; returns them all for `keep`, else none."""
        self._kept = [] if keep else None
        for outcome in self.pool.run(self._tasks(subjects)):
            self._note_machine()
            self._record(self._under_way.pop(outcome.id), outcome)
        return self._kept or []

    def finish(self) -> ReplaySummary:
        """Close the run with what was found."""
        found = self.summary
        self.active.finish_as(found.status, found.sentence, found.exit_code)
        return self.summary

    def _tasks(self, subjects: Iterable[Subject]) -> Iterator[Task]:
        """Tasks for the subjects that can run; the others are recorded on the way."""
        for number, subject in enumerate(subjects):
            definition = subject.definition
            decided = subject.decided or self._runnable(definition)
            if decided is not None or definition is None:
                self._record(subject, decided or Decided("error", "it has no definition"))
                continue
            self._under_way[number] = subject
            yield Task(
                id=number,
                definition=self.pool.define(definition),
                inputs=subject.inputs,
                outputs=subject.outputs,
                oracle=self.oracle,
            )

    def _runnable(self, definition: Definition | None) -> Decided | None:
        """Why a reference is not run, None where it may be."""
        if definition is None:
            return None
        sha256 = definition.sha256
        if sha256 not in self._trust:
            self._trust[sha256] = self._refused(definition)
        return self._trust[sha256]

    def _refused(self, definition: Definition) -> Decided | None:
        if definition.reference_problem is not None:
            return Decided("error", definition.reference_problem)
        try:
            require_trusted(definition)
        except ReferenceUntrusted as error:
            reason = str(error)
            if self.how_to_trust:
                reason = f"{reason.partition('; read')[0]}; {self.how_to_trust}"
            return Decided("error", reason, lacking=True)
        return None

    def _note_machine(self) -> None:
        """Once a worker has said what it runs on, the run's environment has its GPU too."""
        if self._done or not self.pool.greeting:
            return
        greeting: Mapping[str, Any] = self.pool.greeting
        if greeting["gpus"]:
            connection = self.active.connection
            with writing(connection):
                connection.execute(
                    "UPDATE run SET environment_id = ? WHERE id = ?",
                    (add_environment(connection, greeting["facts"]), self.active.id),
                )

    def _record(self, subject: Subject, verdict: Outcome | Decided) -> None:
        row = _row(subject, verdict)
        with writing(self.active.connection) as connection:
            add_replay(connection, self.active.id, row)
        self._done += 1
        self.summary.add(row, verdict.lacking)
        if self._kept is not None:
            self._kept.append((subject, row))
        if self.progress is not None:
            self.progress(self._done, self.summary.total, row)


def _row(subject: Subject, verdict: Outcome | Decided) -> ReplayRow:
    base = ReplayRow(
        subject=subject.uuid,
        definition=subject.definition_name,
        status=verdict.status,
        started_us=now_us(),
        workload_id=subject.workload_id,
        definition_id=subject.definition_id,
        capture_id=subject.capture_id,
        origin=subject.origin,
        reason=verdict.reason,
    )
    if isinstance(verdict, Decided):
        return base
    return replace(
        base,
        started_us=verdict.started_us,
        warning=verdict.warning,
        device=verdict.device,
        seconds=verdict.seconds,
        traceback=verdict.traceback,
        outputs=verdict.outputs,
        oracle=verdict.oracle,
    )
