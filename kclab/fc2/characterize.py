"""What cuBLASLt offers for a boundary, asked in the seed's way, and the candidate to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kclab.fc2.backends import Candidate, Refused
from kclab.fc2.choice import (
    MOST_CHECKS,
    SPLITS,
    default_candidate,
    explicit_checks,
    named_candidate,
    stored_candidate,
)
from kclab.fc2.lab import Session
from kclab.fc2.problem import WORKSPACE_BUDGETS
from kclab.fc2.search.pool import Entry


@dataclass(frozen=True, slots=True)
class Questions:
    """What to ask the library before a candidate is measured."""

    budgets: tuple[int, ...] = WORKSPACE_BUDGETS
    wanted: int = 32
    splits: tuple[int, ...] = SPLITS
    most_checks: int = MOST_CHECKS

    def chooser(self, named: str | None) -> Callable[[Session], Candidate]:
        """A function that asks, keeps the answers as rows, and picks the candidate.

        It is the one that was named, else the stored best that is still valid, else the first
        explicit one that fits, else the heuristic's first.
        """

        def choose(session: Session) -> Candidate:
            enumerated = self._ask(session)
            explicit = self._check(session, enumerated)
            gemm = session.bench.gemm
            if named is not None:
                return named_candidate(gemm, named, self.budgets, self.wanted)
            connection, validity = session.active.connection, session.validity.sha256
            stored = stored_candidate(connection, gemm, session.boundary_id, validity)
            return stored or default_candidate(gemm, explicit, enumerated)

        return choose

    def _ask(self, session: Session) -> list[Candidate]:
        found: list[Candidate] = []
        for budget in self.budgets:
            try:
                answer = session.bench.gemm.enumerate(budget, self.wanted)
            except Refused as refusal:
                session.sink.enumerated(budget, self.wanted, 0, str(refusal))
                continue
            session.sink.enumerated(budget, self.wanted, len(answer), None)
            found += answer
        session.sink.entries([Entry(c) for c in _first_of_each(found)])
        return found

    def _check(self, session: Session, bases: list[Candidate]) -> list[Candidate]:
        checked = explicit_checks(session.bench.gemm, bases, self.splits, self.most_checks)
        accepted = [item for item in checked if isinstance(item, Candidate)]
        refused = [
            Entry(Candidate(item[0], 0, None, "explicit"), "refused", item[1])
            for item in checked
            if not isinstance(item, Candidate)
        ]
        session.sink.entries([*(Entry(c) for c in _first_of_each(accepted)), *refused])
        return accepted


def _first_of_each(candidates: list[Candidate]) -> list[Candidate]:
    return list({c.config: c for c in reversed(candidates)}.values())
