"""Whether stored results still hold here: after a driver, cuBLAS or torch upgrade, say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from kclab.core.errors import CheckFailed, NothingMatched
from kclab.core.stats import Verdict
from kclab.db.queries.fc2 import best_results, one_result
from kclab.db.store import Store
from kclab.fc2.backends import Candidate, Refused
from kclab.fc2.choice import explicit_candidate
from kclab.fc2.config import parse_config
from kclab.fc2.lab import Session, Subject, session
from kclab.fc2.search import Options, Search
from kclab.fc2.search.finals import Result

SLOWER = 0.01
"""A gain that shrank by more than this, beyond the noise, is a regression."""


@dataclass(slots=True)
class Verification:
    """One stored result, measured again."""

    result_id: int
    config: str
    moved: Sequence[str]
    """What differs from the key it was stored under."""
    accepted: bool = False
    """The library still takes the config."""
    same_kernel: bool | None = None
    same_bytes: bool | None = None
    """Its output has the stored sha256; None where none was stored."""
    exact: bool | None = None
    """Equals today's baseline."""
    stored_gain: float | None = None
    gain: float | None = None
    reasons: list[str] = field(default_factory=list)
    """Why it does not hold; empty when it does."""

    @property
    def holds(self) -> bool:
        """Whether the result still stands."""
        return not self.reasons


def verify(
    store: Store,
    result_ids: Sequence[int] = (),
    *,
    backend: str | None = None,
    told: Callable[[Verification], None] = lambda _found: None,
) -> list[Verification]:
    """Measure stored results again, by default the best of each workload.

    Raises NothingMatched for none. A boundary that was imported without tensors is left out.
    """
    with closing(store.read()) as connection:
        numbers = list(result_ids) or [row["result_id"] for row in best_results(connection)]
        rows = [one_result(connection, number) for number in numbers]
    rows = [row for row in rows if not row["imported"]]
    if not rows:
        raise NothingMatched("no stored result to verify; run kclab fc2 sweep first.")
    found = []
    for row in rows:
        found.append(_verify(store, row, backend or row["backend"]))
        told(found[-1])
    return found


def _verify(store: Store, row: Mapping[str, Any], backend: str) -> Verification:
    subject = Subject(
        backend=backend, boundary=row["workload"], workspace_bytes=row["supplied_workspace"]
    )
    params = {"result": row["result_id"], "config": row["config"]}
    with session(store, subject, "verify", params) as open_run:
        moved = open_run.validity.differences(row["validity"])
        found = Verification(row["result_id"], row["config"], moved, stored_gain=row["ratio"])
        try:
            candidate = explicit_candidate(open_run.bench.gemm, parse_config(row["config"]))
        except Refused as refusal:
            found.reasons.append(str(refusal))
        else:
            _measure(open_run, candidate, row, found)
        word = "holds" if found.holds else "; ".join(found.reasons)
        open_run.active.finish_as("passed" if found.holds else "failed", f"{row['config']} {word}")
        return found


def _measure(
    open_run: Session, candidate: Candidate, row: Mapping[str, Any], found: Verification
) -> None:
    found.accepted = True
    searching = Search(open_run.bench, Options(seconds=0), open_run.sink)
    (entry,) = searching.pool.admit([candidate])
    if entry.status != "valid":
        found.reasons.append(f"refused when it ran: {entry.reason}")
        return
    searching.finals.settle([entry])
    results = searching.finals.judge([entry], "verify")
    open_run.sink.results(results)
    open_run.sink.entries([entry])
    _compare(next(r for r in results if r.config == candidate.config), row, found)


def _compare(result: Result, row: Mapping[str, Any], found: Verification) -> None:
    kernel = result.launch.kernel if result.launch else None
    found.same_kernel = kernel == row["kernel"]
    stored = row["output_sha256"]
    found.same_bytes = None if stored is None else result.parity.actual_sha256 == stored
    found.exact, found.gain = result.exact, result.gain
    if not found.same_kernel:
        found.reasons.append(f"launches {kernel} instead of {row['kernel']}")
    if row["exact"] and not result.counts:
        found.reasons.append("its bytes are no longer the baseline's")
    elif found.same_bytes is False:
        found.reasons.append("its output has other bytes than were stored")
    slack = 1 + max(SLOWER, result.algorithm.floor)
    if row["verdict"] == Verdict.FAST and result.algorithm.ratio.high * slack < row["ratio"]:
        now = (result.gain - 1) * 100
        found.reasons.append(f"gains {now:+.1f} % where {(row['ratio'] - 1) * 100:+.1f} % stood")


def require_all(found: Sequence[Verification]) -> None:
    """Raise CheckFailed where a result does not hold."""
    broken = [one for one in found if not one.holds]
    if broken:
        raise CheckFailed(f"{len(broken)} of {len(found)} stored results no longer hold.")
