"""Sweeps of several boundaries: one after the other here, or side by side on a Ray cluster.

Each boundary has a run of its own, like one that is swept alone; a run above them says what became
of all. One that fails keeps none of the others from its turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from kclab.core.errors import CheckFailed, ExitCode, KclabError, NothingMatched
from kclab.db.connection import writing
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store, open_for_writing
from kclab.fc2.adoption import adopt_captured
from kclab.fc2.boundary import SELECT, find_boundary
from kclab.fc2.confirm import confirm_winner
from kclab.fc2.lab import Subject, Watch, no_watch
from kclab.fc2.search import Options
from kclab.fc2.sweep import sweep


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of each boundary."""

    options: Options
    confirm: int = 0
    """Fresh processes that must agree with the winner."""
    resume: bool = False
    params: Mapping[str, Any] | None = None
    """As the command was given them; each run states its own boundary."""

    def params_of(self, subject: Subject) -> dict[str, Any]:
        """The parameters of one boundary's run."""
        shape = None if subject.problem is None else subject.problem.shape
        own = {"boundary": subject.boundary, "shape": shape}
        rest = {name: value for name, value in (self.params or {}).items() if name not in own}
        return rest | {name: value for name, value in own.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of one boundary."""

    name: str
    run_uuid: str | None
    said: str
    """The run's summary, or why there is no result."""
    exit_code: int = 0


Told = Callable[[Swept], None]


def name_of(subject: Subject) -> str:
    """`4096x5376x5376 bf16`, or the beginning of a stored boundary's uuid."""
    if subject.problem is not None:
        return f"{subject.problem.shape} {subject.problem.numerics}"
    return (subject.boundary or "last")[:8]


def stored_subjects(store: Store, like: Subject, names: Sequence[str] | None) -> list[Subject]:
    """Subjects for stored boundaries by uuid, its beginning or `last`; None: all with content.

    Raises NothingMatched where there is none.
    """
    open_for_writing(store)
    with closing(store.write()) as connection:
        adopt_captured(connection)
        if names is not None:
            uuids = [find_boundary(connection, name).workload_uuid for name in names]
        else:
            rows = connection.execute(f"{SELECT} WHERE b.source <> 'imported' ORDER BY b.id")
            uuids = [row["uuid"] for row in rows]
    if not uuids:
        raise NothingMatched("no boundary is stored; make one with kclab fc2 capture --shape.")
    return [replace(like, boundary=uuid, problem=None) for uuid in dict.fromkeys(uuids)]


def sweep_each(
    store: Store,
    subjects: Sequence[Subject],
    ask: Ask,
    *,
    ray: str | None = None,
    told: Told,
    watch: Watch = no_watch,
) -> list[Swept]:
    """Sweep every subject; `told` hears of each when it is done.

    Raises EnvironmentLacking where there is no Ray cluster to be had.
    """
    with run(store, "fc2", ask.params or {}, mode="sweeps") as above:
        found = []
        for swept in (
            _in_turn(above, subjects, ask, watch)
            if ray is None
            else _spread(above, subjects, ask, ray)
        ):
            found.append(swept)
            told(swept)
        failed = [swept for swept in found if swept.exit_code]
        line = f"{len(found) - len(failed)} of {len(found)} boundaries swept"
        above.finish_as("failed" if failed else "passed", line, exit_code_of(found))
    return found


def exit_code_of(found: Sequence[Swept]) -> int:
    """0 where all went well, the code that all failures share, else 1."""
    codes = {swept.exit_code for swept in found if swept.exit_code}
    return int(codes.pop() if len(codes) == 1 else ExitCode.CHECK_FAILED) if codes else 0


def _spread(
    above: ActiveRun, subjects: Sequence[Subject], ask: Ask, address: str
) -> Iterator[Swept]:
    from kclab.fc2.ray_sweeps import sweeps_on_ray

    return sweeps_on_ray(above, subjects, ask, address)


def _in_turn(
    above: ActiveRun, subjects: Sequence[Subject], ask: Ask, watch: Watch
) -> Iterator[Swept]:
    for subject in subjects:
        said, code = sweep_one(above.store, subject, ask, watch)
        with writing(above.connection) as tx:
            tx.execute(
                "UPDATE run SET parent_id = ? WHERE id > ? AND pid = ? AND parent_id IS NULL",
                (above.id, above.id, os.getpid()),
            )
        yield swept_of(above, name_of(subject), said, code)


def sweep_one(store: Store, subject: Subject, ask: Ask, watch: Watch) -> tuple[str | None, int]:
    """Sweep one boundary; (what went wrong, its exit code), or (None, 0)."""
    params = ask.params_of(subject)
    try:
        report = sweep(store, subject, ask.options, resume=ask.resume, watch=watch, params=params)
        best = report.outcome.exact
        if ask.confirm and best is not None and not best.is_control:
            held = confirm_winner(store, report.run_uuid, best.config.text, ask.confirm)
            if held.agreed < held.asked:
                raise CheckFailed(
                    f"the winner held in {held.agreed} of {held.asked} fresh processes."
                )
    except KclabError as error:
        return str(error), int(error.exit_code)
    return None, 0


def swept_of(above: ActiveRun, name: str, said: str | None, code: int) -> Swept:
    """What became of a boundary whose runs are in the store by now."""
    row = above.connection.execute(
        "SELECT uuid, summary FROM run WHERE parent_id = ? AND mode = 'sweep'"
        " ORDER BY id DESC LIMIT 1",
        (above.id,),
    ).fetchone()
    uuid, summary = (None, None) if row is None else tuple(row)
    return Swept(name, uuid, said or summary or "", code)
