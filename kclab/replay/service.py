"""Replaying a store's captures, or a dataset folder in place; every verdict a committed row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kclab.core.definition import Definition
from kclab.core.errors import NothingMatched
from kclab.core.families import family_of
from kclab.core.trust import is_trusted
from kclab.core.units import counted
from kclab.dataset.cases import Root
from kclab.db.connection import writing
from kclab.db.rows import add_definition
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store, open_for_writing
from kclab.db.verdicts import ReplayRow
from kclab.replay.pool import Pool
from kclab.replay.recorder import Progress, Recorder
from kclab.replay.report import write_report
from kclab.replay.root_subjects import check_selection, root_subjects
from kclab.replay.selection import Selection, StoreSubjects, choose, what_there_is
from kclab.replay.subject import Subject
from kclab.replay.summary import ReplaySummary
from kclab.replay.workers import WorkerPool


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda` (every GPU) or `cuda:<n>`."""
    jobs: int | None = None
    """Worker processes; None: one a GPU, or one a core up to 8."""
    timeout: float = 300.0
    """Seconds for one workload, loading and comparing included."""
    oracle: bool = False
    """Also judge engine and reference by the reference in float64."""
    ray: str | None = None
    """Address of a Ray cluster whose workers judge; None: processes of this machine."""


def replay(
    store: Store,
    selection: Selection,
    options: Options | None = None,
    progress: Progress | None = None,
) -> ReplaySummary:
    """Replay what is selected of a store.

    Raises NothingMatched, or EnvironmentLacking when workers cannot start.
    """
    options = options or Options()
    if not store.database.exists():
        store.read()  # says that there is no database; replay has nothing to make one for
    open_for_writing(store)
    with closing(store.read()) as reader:
        chosen = choose(reader, selection)
        nothing = None if chosen else what_there_is(reader, selection)
    with _judging(store, options, _params(selection, options), nothing) as (active, pool):
        recorder = Recorder(active, pool, len(chosen), progress, oracle=options.oracle)
        recorder.judge(StoreSubjects(active.connection, store.blobs).read(chosen))
        return recorder.finish()


def replay_root(
    store: Store,
    root: Root,
    selection: Selection,
    options: Options | None = None,
    progress: Progress | None = None,
    how_to_trust: str | None = None,
) -> ReplaySummary:
    """Replay a dataset folder in place, then write its `results/replay.json`.

    The verdicts are rows of `store`. `how_to_trust` ends the reason of a row whose reference is
    not trusted. Raises BadUsage for a selection that needs a store, else as `replay`.
    """
    options = options or Options()
    check_selection(selection)
    subjects = root_subjects(root, selection)
    params = {"path": str(root.path.resolve()), **_params(selection, options)}
    nothing = None if subjects else f"{root.path}: nothing in it to replay."
    with _judging(store, options, params, nothing, mode="in place") as (active, pool):
        subjects = _known_to_store(active.connection, subjects, root.path)
        recorder = Recorder(
            active,
            pool,
            len(subjects),
            progress,
            oracle=options.oracle,
            how_to_trust=how_to_trust,
        )
        recorder.summary.notes += root.warnings
        verdicts = recorder.judge(subjects, keep=True)
        _write_report(root, verdicts, selection, recorder)
        return recorder.finish()


@contextmanager
def _judging(
    store: Store,
    options: Options,
    params: Mapping[str, Any],
    nothing: str | None,
    mode: str | None = None,
) -> Iterator[tuple[ActiveRun, Pool]]:
    """Workers and an open run; the run ends as empty where there is `nothing` to judge."""
    if nothing is not None:
        with run(store, "replay", params, mode=mode):
            raise NothingMatched(nothing)
    # The first worker loads torch while the run is opened and its first batch is read.
    with (
        _workers(options) as pool,
        run(store, "replay", params, mode=mode) as active,
    ):
        yield active, pool


def _workers(options: Options) -> Pool:
    if options.ray is None:
        return WorkerPool(options.device, options.jobs, options.timeout)
    from kclab.replay.ray_pool import RayPool

    return RayPool(options.ray, options.device, options.jobs, options.timeout)


def untrusted(definitions: Iterable[Definition]) -> list[Definition]:
    """Those whose reference may not run on this machine, one for each source."""
    sources = {d.reference_sha256: d for d in definitions if d.reference_problem is None}
    return [d for sha256, d in sorted(sources.items()) if not is_trusted(sha256)]


def _params(selection: Selection, options: Options) -> dict[str, Any]:
    return {
        **selection.stated,
        "device": options.device,
        "jobs": options.jobs,
        "timeout": options.timeout,
        "oracle": options.oracle,
        **({} if options.ray is None else {"ray": options.ray}),
    }


def _known_to_store(
    connection: sqlite3.Connection, subjects: Sequence[Subject], origin: Path
) -> list[Subject]:
    """The subjects with the rows that the store has for them: definitions, earlier imports."""
    definitions = {s.definition.sha256: s.definition for s in subjects if s.definition is not None}
    ids: dict[str, int] = {}
    with writing(connection):
        for sha256, definition in definitions.items():
            family = family_of(definition.name)
            ids[sha256] = add_definition(
                connection, definition.body, family=family, origin=str(origin)
            )
    known = []
    for subject in subjects:
        row = connection.execute(
            "SELECT id, workload_id FROM capture WHERE uuid = ?", (subject.uuid,)
        ).fetchone()
        definition_id = None if subject.definition is None else ids[subject.definition.sha256]
        known.append(
            replace(
                subject,
                definition_id=definition_id,
                capture_id=None if row is None else row["id"],
                workload_id=None if row is None else row["workload_id"],
            )
        )
    return known


def _write_report(
    root: Root,
    verdicts: Sequence[tuple[Subject, ReplayRow]],
    selection: Selection,
    recorder: Recorder,
) -> None:
    """Write `results/replay.json`, unless what was found says too little about the root."""
    summary = recorder.summary
    problem = None
    if selection.stated:
        problem = "only a whole replay writes it"
    elif summary.status == "empty":
        problem = "there was nothing to judge"
    elif summary.lacking:
        problem = f"{counted(summary.lacking, 'workload')} could not be judged on this machine"
    else:
        try:
            torch = recorder.pool.greeting.get("torch", "")
            write_report(root.path, verdicts, summary.device, torch)
        except OSError as error:
            problem = f"{error.strerror}; the verdicts are in the store"
    if problem is not None:
        summary.notes.append(f"{root.path}: results/replay.json was not written ({problem}).")
