"""What stands behind an FC2 result: its samples, parity, checks and gates; and its rivals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kclab.core.stats import Sample
from kclab.db.queries.fc2 import CONFIG_TEXT, FIELDS, FROM, GATES, ORDER, one_result, pareto


def best_steps(
    connection: sqlite3.Connection, budgets: Sequence[int], *, inexact: bool = False
) -> list[dict[str, Any]]:
    """Of each workload, backend and GPU the best config from each `budget` on that changes it."""
    last: dict[tuple[Any, ...], int] = {}
    steps = []
    for row in pareto(connection, sorted(budgets), inexact=inexact):
        place = (row["workload"], row["backend"], row["gpu"])
        if last.get(place) != row["result_id"]:
            steps.append(row)
        last[place] = row["result_id"]
    places = {place: number for number, place in enumerate(last)}
    return sorted(steps, key=lambda row: places[row["workload"], row["backend"], row["gpu"]])


def result_samples(connection: sqlite3.Connection, result_id: int) -> list[Sample]:
    """Every timed execution of a result, in the order they were run."""
    rows = connection.execute(
        "SELECT s.round, s.position, s.arm, s.ms FROM fc2_result r JOIN timing_sample s"
        " ON s.measurement_id = r.measurement_id WHERE r.id = ? ORDER BY s.round, s.position",
        (result_id,),
    )
    return [Sample(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class ResultDetails:
    """A result, and what it rests on."""

    result: dict[str, Any]
    samples: list[Sample]
    parity: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    gates: list[dict[str, Any]]


def result_details(connection: sqlite3.Connection, result_id: int) -> ResultDetails:
    """A result with its samples, parity, checks and gates. Raises NothingMatched."""
    result = one_result(connection, result_id)
    parity = connection.execute(
        "SELECT subject, exact, elements, different, max_abs, mean_abs, reason FROM fc2_parity"
        " WHERE result_id = ? ORDER BY subject",
        (result_id,),
    )
    checks = connection.execute(
        "SELECT k.name, k.passed, k.detail FROM fc2_result r JOIN fc2_candidate f"
        " ON f.run_id = r.run_id AND f.boundary_id = r.boundary_id AND f.config_id = r.config_id"
        " JOIN fc2_check k ON k.candidate_id = f.id WHERE r.id = ? ORDER BY k.name",
        (result_id,),
    )
    gates = connection.execute(
        "SELECT g.kind, g.status, g.detail, g.at_us FROM fc2_result r JOIN fc2_gate g"
        " ON g.config_id = r.config_id AND g.boundary_id = r.boundary_id"
        " AND g.validity_id = r.validity_id WHERE r.id = ? ORDER BY g.at_us DESC, g.id DESC",
        (result_id,),
    )
    return ResultDetails(
        result,
        result_samples(connection, result_id),
        [dict(row) for row in parity],
        [dict(row) for row in checks],
        [{**dict(row), "detail": json.loads(row["detail"] or "null")} for row in gates],
    )


def rival_results(connection: sqlite3.Connection, result_id: int) -> list[dict[str, Any]]:
    """The last result of every config measured on the same workload, scope and machine, best
    first.
    """
    newest = (
        "SELECT max(o.id) FROM fc2_result o JOIN fc2_result t ON t.id = ?"
        " AND t.boundary_id = o.boundary_id AND t.validity_id = o.validity_id"
        " AND t.scope = o.scope GROUP BY o.config_id"
    )
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES} {FROM} WHERE r.id IN ({newest}) ORDER BY {ORDER}", (result_id,)
    )
    return [dict(row) for row in rows]


def config_measurements(connection: sqlite3.Connection, result_id: int) -> list[dict[str, Any]]:
    """Every measurement of a result's config on its workload in its scope, newest first.

    `changed` names what the machine had of another version at the measurement before.
    """
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES}, v.facts, {CONFIG_TEXT} {FROM} JOIN fc2_result t ON t.id = ?"
        " AND t.config_id = r.config_id AND t.boundary_id = r.boundary_id AND t.scope = r.scope"
        " ORDER BY r.measured_us DESC, r.id DESC",
        (result_id,),
    )
    found = [{**dict(row), "facts": json.loads(row["facts"])} for row in rows]
    for row, before in zip(found, [*found[1:], None], strict=True):
        row["changed"] = None if before is None else _changes(before["facts"], row["facts"])
    return found


def _changes(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    names = [n for n in {**before, **after} if before.get(n) != after.get(n)]
    return ", ".join(f"{n} {before.get(n)} → {after.get(n)}" for n in names) or None
