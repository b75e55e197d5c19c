"""The FC2 lab's runs: open a boundary on a backend, measure, keep rows, say what was found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kclab.core.environment import environment_facts
from kclab.core.errors import CheckFailed, EnvironmentLacking
from kclab.core.stats import MIN_PAIRS
from kclab.db.connection import writing
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store
from kclab.fc2.adoption import adopt_captured
from kclab.fc2.backends import Backend, Candidate, Refused, load_backend
from kclab.fc2.bench import Bench
from kclab.fc2.boundary import (
    Boundary,
    find_boundary,
    load_boundary,
    synthetic_boundary,
)
from kclab.fc2.boundary_insertion import store_boundary
from kclab.fc2.gpu import Watcher, find_gpu, held
from kclab.fc2.problem import GEMM, PRODUCER_GEMM, WORKSPACE_BUDGETS, Problem
from kclab.fc2.rows import RowSink
from kclab.fc2.search import Event, Options, Search
from kclab.fc2.search.finals import Result
from kclab.fc2.search.pool import Entry
from kclab.fc2.validity import Validity, current_validity, switches


@dataclass(frozen=True, slots=True)
class Subject:
    """What to measure, and on what."""

    backend: str
    boundary: str | None = None
    """A stored boundary: its workload's uuid or the beginning of it, or `last`."""
    problem: Problem | None = None
    """Or a synthetic one of this size."""
    seed: int = 440_420
    """Of a synthetic one's content."""
    make: Callable[[Backend], Boundary] | None = None
    """Or one that is made here, as out of a model."""
    workspace_bytes: int = max(WORKSPACE_BUDGETS)
    cold: bool = True
    """Overwrite the cache before each timed launch."""


@dataclass(slots=True)
class Session:
    """An open run on one boundary."""

    active: ActiveRun
    boundary: Boundary
    boundary_id: int
    backend: Backend
    bench: Bench
    sink: RowSink
    validity: Validity


Watch = Callable[[Event], None]


def no_watch(_event: Event) -> None:
    """For callers that do not look."""


@contextmanager
def session(
    store: Store, subject: Subject, mode: str, params: Mapping[str, Any]
) -> Iterator[Session]:
    """A run with its boundary stored and its bench open, holding the device.

    Raises EnvironmentLacking (kept as the run's error) where the dtype cannot run here.
    """
    backend = load_backend(subject.backend)
    facts = backend.facts()
    environment = {**environment_facts(), **{k: v for k, v in facts.items() if k == "cublaslt"}}
    device = str(facts.get("gpu_uuid") or facts.get("gpu"))
    with (
        held(device),
        run(store, "fc2", params, mode=mode, environment=environment) as active,
    ):
        connection = active.connection
        boundary, boundary_id = _boundary(store, connection, subject, backend)
        validity = current_validity(backend)
        _note_device(active, backend, "begin")
        sink = RowSink(connection, active.id, boundary_id, validity, subject.workspace_bytes)
        _require(backend, boundary, sink, subject.workspace_bytes)
        bench = Bench(
            backend,
            boundary.problem,
            boundary.operands,
            subject.workspace_bytes,
            gate_up=boundary.gate_up,
            cold=subject.cold,
        )
        note_fact(active, "baseline", bench.baseline_metadata())
        note_fact(active, "switches", switches())
        try:
            yield Session(active, boundary, boundary_id, backend, bench, sink, validity)
        finally:
            bench.close()
            _note_device(active, backend, "end")


def _boundary(
    store: Store, connection: sqlite3.Connection, subject: Subject, backend: Backend
) -> tuple[Boundary, int]:
    if subject.make is not None:
        made = subject.make(backend)
        return made, store_boundary(store, connection, made)
    if subject.problem is not None:
        made = synthetic_boundary(subject.problem, subject.seed, backend.device)
        return made, store_boundary(store, connection, made)
    adopt_captured(connection)
    row = find_boundary(connection, subject.boundary or "last")
    return load_boundary(store, connection, row, backend.device), row.id


def _require(backend: Backend, boundary: Boundary, sink: RowSink, workspace: int) -> None:
    """Keep what the library answers as rows before the dtype is refused."""
    try:
        backend.require(boundary.problem)
    except EnvironmentLacking:
        gemm = backend.open(boundary.problem, boundary.operands, workspace)
        for budget in WORKSPACE_BUDGETS:
            try:
                found = len(gemm.enumerate(budget, 1))
                sink.enumerated(budget, 1, found, None)
            except Refused as refusal:
                sink.enumerated(budget, 1, 0, str(refusal))
        gemm.close()
        raise


def watch_gpu(backend: Backend) -> Watcher:
    """Looks at the backend's GPU."""
    uuid = str(backend.facts().get("gpu_uuid") or "")
    return Watcher(find_gpu(uuid) if uuid else None)


def _note_device(active: ActiveRun, backend: Backend, when: str) -> None:
    uuid = str(backend.facts().get("gpu_uuid") or "")
    reading = watch_gpu(backend).read()
    if reading is not None:
        note_fact(active, when, reading)
        with writing(active.connection) as tx:
            tx.execute("UPDATE run SET gpu_uuid = ? WHERE id = ?", (uuid, active.id))


def note_fact(active: ActiveRun, name: str, value: Mapping[str, Any]) -> None:
    """Add one entry to the run's volatile facts."""
    with writing(active.connection) as tx:
        row = tx.execute("SELECT volatile FROM run WHERE id = ?", (active.id,)).fetchone()
        known = json.loads(row[0]) if row[0] else {}
        known[name] = value
        tx.execute("UPDATE run SET volatile = ? WHERE id = ?", (json.dumps(known), active.id))


def capture(store: Store, problem: Problem, backend_name: str, seed: int) -> tuple[str, int]:
    """Store a synthetic boundary; (run uuid, boundary id)."""
    backend = load_backend(backend_name)
    params = {"shape": problem.shape, "numerics": problem.numerics, "seed": seed}
    with run(store, "fc2", params, mode="capture") as active:
        made = synthetic_boundary(problem, seed, backend.device)
        boundary_id = store_boundary(store, active.connection, made)
        active.finish_as("passed", f"{problem.shape} {problem.numerics}, synthetic")
    return active.uuid, boundary_id


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One config in both scopes."""

    run_uuid: str
    problem: Problem
    results: Sequence[Result]
    """B0 and the config, in each scope."""

    @property
    def exact(self) -> bool:
        """Whether the config's bytes were A's in every scope."""
        return all(result.exact for result in self.results)


def measure(
    store: Store,
    subject: Subject,
    choose: Callable[[Session], Candidate],
    *,
    mode: str,
    warmup: int,
    rounds: int,
    params: Mapping[str, Any] | None = None,
) -> CandidateReport:
    """Measure one config against A and B0 in both scopes.

    Raises CheckFailed, with the rows kept, where its bytes differ from A's.
    """
    with session(store, subject, mode, params or {}) as open_run:
        candidate = choose(open_run)
        gpu = watch_gpu(open_run.backend)
        searching = Search(open_run.bench, Options(seconds=0), open_run.sink, gpu=gpu)
        searching.finals.warm_ups = warmup
        (entry,) = searching.pool.admit([candidate])
        if entry.status != "valid":
            open_run.sink.entries([entry])
            raise CheckFailed(f"config {entry.name} was refused: {entry.reason}.")
        results = _both_scopes(open_run, searching, entry, mode, rounds)
        own = [r for r in results if r.config == candidate.config]
        report = CandidateReport(open_run.active.uuid, open_run.boundary.problem, results)
        if not all(r.counts for r in own):
            raise CheckFailed(f"config {entry.name} is not byte-exact: {_why(own)}. Rows are kept.")
        gain = (own[0].gain - 1) * 100
        verdict = own[0].algorithm.verdict
        open_run.active.finish_as("passed", f"{entry.name} exact, {gain:+.1f} % {verdict}")
        return report


def _both_scopes(
    open_run: Session, searching: Search, entry: Entry, mode: str, rounds: int
) -> list[Result]:
    scopes = [GEMM, PRODUCER_GEMM] if open_run.bench.gate_up is not None else [GEMM]
    results: list[Result] = []
    for scope in scopes:
        searching.finals.settle([entry], scope=scope)
        fewest = rounds if scope == GEMM else max(MIN_PAIRS, rounds // 2)
        found = searching.finals.judge([entry], mode, scope=scope, fewest=fewest)
        open_run.sink.results(found)
        results += found
    open_run.sink.entries([entry])
    return results


def _why(results: Sequence[Result]) -> str:
    different = max(result.parity.different for result in results)
    failed = [check for result in results for check in result.checks if not check.passed]
    if different:
        return f"{different} elements differ from {results[0].baseline}"
    return "; ".join(f"{check.name}: {check.detail}" for check in failed[:1])
