"""A sweep: search a boundary's configs, judge the winners in both scopes, keep everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import NothingMatched
from kclab.db.store import Store
from kclab.fc2.backends import Candidate
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gpu import GLANCE
from kclab.fc2.lab import Session, Subject, Watch, no_watch, note_fact, session, watch_gpu
from kclab.fc2.problem import PRODUCER_GEMM, Problem
from kclab.fc2.search import Known, Options, Outcome, Search
from kclab.fc2.search.finals import Result
from kclab.fc2.search.terms import NOTHING_KNOWN

PROMISING = 24
"""Candidates of earlier runs that a resumed one races again."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep found; the rows hold the rest."""

    run_uuid: str
    problem: Problem
    outcome: Outcome
    scopes: Sequence[Result]
    """The winners in the producer + GEMM scope."""
    gpu: str


def sweep(
    store: Store,
    subject: Subject,
    options: Options,
    *,
    resume: bool = False,
    watch: Watch = no_watch,
    params: Mapping[str, Any] | None = None,
) -> SweepReport:
    """Search a boundary's configs and judge the winners in both scopes.

    Raises NothingMatched where nothing could be measured.
    """
    with session(store, subject, "sweep", params or {}) as open_run:
        known = _known(open_run) if resume else NOTHING_KNOWN
        gpu = watch_gpu(open_run.backend)
        searching = Search(open_run.bench, options, open_run.sink, watch, known, gpu)
        try:
            outcome = searching.run()
        finally:
            if seen := searching.screening():
                note_fact(open_run.active, "screening", {"fields": GLANCE, "rounds": seen})
        if outcome.exact is None and outcome.any is None:
            raise NothingMatched("nothing was measured: every config was refused or failed.")
        scopes = _producer_scope(open_run, searching, outcome)
        open_run.active.finish_as("passed", _summary(open_run.boundary.problem, outcome))
        name = str(open_run.backend.facts()["gpu"])
        return SweepReport(open_run.active.uuid, open_run.boundary.problem, outcome, scopes, name)


def _producer_scope(open_run: Session, searching: Search, outcome: Outcome) -> list[Result]:
    if open_run.bench.gate_up is None:
        return []
    winners = dict.fromkeys(r.config for r in (outcome.exact, outcome.any) if r)
    entries = [searching.pool.entries[config] for config in winners]
    results = searching.finals.judge(entries, "final", scope=PRODUCER_GEMM, fewest=10)
    open_run.sink.results(results)
    return results


def _summary(problem: Problem, outcome: Outcome) -> str:
    best = outcome.exact
    text = f"{problem.shape} {problem.numerics}: "
    if best is None:
        return text + "no exact config"
    if best.is_control:
        return text + f"rank 0 stays ({best.algorithm.verdict})"
    return text + f"{best.config.text} {(best.gain - 1) * 100:+.1f} % {best.algorithm.verdict}"


def _known(open_run: Session) -> Known:
    """What this boundary's earlier runs tried with the same libraries, GPU and workspace."""
    rows = open_run.active.connection.execute(
        "SELECT c.*, f.status, f.required_workspace, f.waves, max(f.screen_ratio) AS best_ratio"
        " FROM fc2_candidate f JOIN algo_config c ON c.id = f.config_id"
        " WHERE f.boundary_id = ? AND f.run_id IN (SELECT run_id FROM fc2_result"
        "  WHERE boundary_id = ? AND validity_id = ? AND supplied_workspace = ?)"
        " GROUP BY f.config_id ORDER BY best_ratio DESC",
        (
            open_run.boundary_id,
            open_run.boundary_id,
            open_run.sink.validity_id,
            open_run.sink.supplied_workspace,
        ),
    ).fetchall()
    configs = [AlgorithmConfig(*tuple(row)[1:10]) for row in rows]
    promising = [
        Candidate(config, row["required_workspace"], row["waves"], "resumed")
        for config, row in zip(configs, rows, strict=True)
        if row["status"] == "valid"
    ]
    # One that was admitted and never timed, as by an interrupt, is still to be tried.
    tried = (
        config
        for config, row in zip(configs, rows, strict=True)
        if row["status"] != "valid" or row["best_ratio"] is not None
    )
    return Known(promising[:PROMISING], frozenset(tried))
