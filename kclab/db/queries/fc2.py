"""What the FC2 lab remembers: the best config of each boundary, and how it came to be known."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from kclab.core.errors import NothingMatched

CONFIG = (
    "c.algorithm_id, c.tile_id, c.stages_id, c.split_k, c.reduction_scheme, c.cta_swizzle,"
    " c.custom_option, c.inner_shape, c.cluster_shape"
)
CONFIG_TEXT = "||':'||".join(part.strip() for part in CONFIG.split(","))

ELIGIBLE = "r.required_workspace IS NOT NULL AND coalesce(r.checked, 1) = 1"
"""An unknown workspace need is never taken for zero; a failed check excludes."""

CHOOSING = "('heuristics', 'neighbours', 'space')"
"""Stages whose results chose a sweep's winners: the fastest of many is lucky in part, so they count
only where nothing was measured again."""

LATER = 1 << 60
"""More microseconds than any time has: what was measured again comes after all that was not."""

ORDER = (
    f"r.stage IN {CHOOSING},"
    " CASE WHEN r.verdict = 'FAST' THEN 0 WHEN r.is_control THEN 1 ELSE 2 END,"
    " r.ratio DESC, r.required_workspace, r.config_id"
)
"""What was measured again comes first; then decided gains, B0 itself, and what is undecided."""

FIELDS = f"""
    w.uuid AS workload, b.precision, b.m, b.m_padded, b.n, b.k, b.fast_accumulation, b.block,
    v.backend, v.gpu, v.cublaslt, v.driver, {CONFIG_TEXT} AS config, r.id AS result_id,
    r.required_workspace, r.ratio, r.ratio_low, r.ratio_high, r.verdict, r.exact, r.different,
    r.a_ms, r.b0_ms, r.b_ms, r.baseline_ratio, r.wrapper_ratio, r.floor, r.drift, r.pairs,
    r.scope, r.stage, r.search_seconds, r.is_control, r.imported, r.measured_us,
    l.kernel, run.uuid AS run
"""

FROM = """
    FROM fc2_result r
    JOIN fc2_boundary b ON b.id = r.boundary_id JOIN workload w ON w.id = b.workload_id
    JOIN algo_config c ON c.id = r.config_id JOIN fc2_validity v ON v.id = r.validity_id
    JOIN run ON run.id = r.run_id LEFT JOIN fc2_launch l ON l.id = r.launch_id
"""

GATES = """
    (SELECT CASE WHEN count(*) = 0 THEN 'not gated' WHEN sum(g.status = 'failed') THEN 'failed'
            ELSE 'gated' END
     FROM fc2_gate g WHERE g.config_id = r.config_id AND g.boundary_id = r.boundary_id
       AND g.validity_id = r.validity_id
       AND g.run_id = (SELECT max(n.run_id) FROM fc2_gate n WHERE n.config_id = g.config_id
         AND n.boundary_id = g.boundary_id AND n.validity_id = g.validity_id
         AND n.kind = g.kind)) AS gates
"""
"""The newest run of each kind of gate speaks for it: a failure is made good by passing again."""


def best_results(
    connection: sqlite3.Connection,
    *,
    workspace: int | None = None,
    inexact: bool = False,
    precision: str | None = None,
    workload: str | None = None,
    gpu: str | None = None,
) -> list[dict[str, Any]]:
    """One row per workload, backend and GPU: its best config within a workspace, bytes.

    `inexact` admits configs whose bytes differ from the baseline's.
    """
    terms = _best_terms(workspace, inexact, precision, workload, gpu)
    where = " AND ".join([ELIGIBLE, *(term for term, _ in terms)])
    latest = _latest(_joins(precision or workload, workload, gpu), where)
    ranked = f"""
        SELECT r.id, row_number() OVER (
            PARTITION BY r.boundary_id, v.backend, v.gpu ORDER BY {ORDER}) AS place
        FROM ({latest}) r
        JOIN fc2_validity v ON v.id = r.validity_id
    """
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES} {FROM} JOIN ({ranked}) p ON p.id = r.id AND p.place = 1"
        " ORDER BY b.precision, b.m DESC, b.n, b.k",
        [value for _, value in terms],
    )
    return [dict(row) for row in rows]


def _best_terms(
    workspace: int | None,
    inexact: bool,
    precision: str | None,
    workload: str | None,
    gpu: str | None,
) -> list[tuple[str, Any]]:
    """Conditions on a result, each with the value of its mark."""
    terms: list[tuple[str, Any]] = [("r.scope = ?", "gemm")]
    if workspace is not None:
        terms.append(("r.required_workspace <= ?", workspace))
    if not inexact:
        terms.append(("r.exact = ?", 1))
    if precision:
        terms.append(("b.precision = ?", precision))
    if workload:
        terms.append(("w.uuid LIKE ? || '%'", workload))
    if gpu:
        terms.append(("v.gpu LIKE '%' || ? || '%'", gpu))
    return terms


def _latest(joins: str, where: str) -> str:
    """The newest result of each config: one that did not choose itself, where there is one.

    This part sees every result: narrow rows of one index in its own order, only the joins that a
    filter needs, and SQLite's rule that beside max() the other columns are of that very row.
    """
    return f"""
        SELECT r.id, r.boundary_id, r.validity_id, r.config_id, r.ratio, r.verdict, r.is_control,
            r.required_workspace, r.stage,
            max((r.stage NOT IN {CHOOSING}) * {LATER} + r.measured_us)
        FROM fc2_result r {joins} WHERE {where}
        GROUP BY r.boundary_id, r.validity_id, r.config_id
    """


def _joins(boundary: Any, workload: Any, gpu: Any) -> str:
    joins = " JOIN fc2_validity v ON v.id = r.validity_id" if gpu else ""
    joins += " JOIN fc2_boundary b ON b.id = r.boundary_id" if boundary else ""
    return joins + (" JOIN workload w ON w.id = b.workload_id" if workload else "")


def best_configs(
    connection: sqlite3.Connection,
    *,
    boundary_id: int,
    validity_sha256: str,
    workspace: int,
) -> list[dict[str, Any]]:
    """Exact configs of a boundary under one validity key, best first; `config` as a tuple."""
    rows = connection.execute(
        f"SELECT {CONFIG_TEXT} AS config, max(r.id) {FROM}"
        f" WHERE {ELIGIBLE} AND r.scope = 'gemm' AND r.exact = 1 AND r.boundary_id = ?"
        "   AND v.sha256 = ? AND r.required_workspace <= ?"
        f" GROUP BY r.config_id ORDER BY {ORDER}",
        (boundary_id, validity_sha256, workspace),
    )
    return [{"config": tuple(int(n) for n in row["config"].split(":"))} for row in rows]


def pareto(
    connection: sqlite3.Connection, budgets: Sequence[int], **selection: Any
) -> list[dict[str, Any]]:
    """For each workspace budget the best of each workload; `budget` is added to each row."""
    return [
        {"budget": budget, **row}
        for budget in budgets
        for row in best_results(connection, workspace=budget, **selection)
    ]


def _run_id(connection: sqlite3.Connection, run: str) -> int:
    # Here, not above: what runs need (processes, signals) would be half of what `best` loads.
    from kclab.db.queries.runs import find_run

    return int(find_run(connection, run)["id"])


def run_candidates(connection: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """What a run tried, fastest in the race first, with why others were not raced."""
    run_id = _run_id(connection, run)
    rows = connection.execute(
        f"SELECT {CONFIG_TEXT} AS config, f.origin, f.budget, f.rank, f.required_workspace,"
        " f.waves, f.status, f.exact, f.screen_ratio, f.screen_samples, f.output_class,"
        " l.kernel, l.grid, l.cluster, coalesce(l.stream_k, 0) AS stream_k,"
        " coalesce(f.reason, (SELECT group_concat(k.name || ': ' || coalesce(k.detail, 'failed'),"
        "   '; ') FROM fc2_check k WHERE k.candidate_id = f.id AND NOT k.passed)) AS reason"
        " FROM fc2_candidate f JOIN algo_config c ON c.id = f.config_id"
        " LEFT JOIN fc2_launch l ON l.id = f.launch_id WHERE f.run_id = ?"
        " ORDER BY f.screen_ratio IS NULL, f.screen_ratio DESC, f.id",
        (run_id,),
    )
    return [dict(row) for row in rows]


def run_results(connection: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """A run's measured configs, the last measurement of each config and scope."""
    run_id = _run_id(connection, run)
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES}, max(r.id) {FROM} WHERE r.run_id = ?"
        f" GROUP BY r.boundary_id, r.config_id, r.scope ORDER BY r.scope, {ORDER}",
        (run_id,),
    )
    return [dict(row) for row in rows]


def config_history(connection: sqlite3.Connection, config: Sequence[int]) -> list[dict[str, Any]]:
    """Every measurement of a config, newest first."""
    marks = " AND ".join(f"{name.strip()} = ?" for name in CONFIG.split(","))
    rows = connection.execute(
        f"SELECT {FIELDS}, {GATES} {FROM} WHERE {marks} ORDER BY r.measured_us DESC, r.id DESC",
        tuple(config),
    )
    return [dict(row) for row in rows]


def one_result(connection: sqlite3.Connection, result_id: int) -> dict[str, Any]:
    """One result with its parity, checks, validity facts and samples' summary.

    Raises NothingMatched.
    """
    row = connection.execute(
        f"SELECT {FIELDS}, {GATES}, r.baseline, r.supplied_workspace, r.output_sha256, l.grid,"
        f" l.cluster, l.stream_k, v.facts AS validity, run.argv,"
        f" coalesce(json_extract(run.params, '$.hot'), 0) AS hot {FROM} WHERE r.id = ?",
        (result_id,),
    ).fetchone()
    if row is None:
        raise NothingMatched(f"no FC2 result {result_id}; kclab fc2 best lists them.")
    found = dict(row)
    found["validity"] = json.loads(found["validity"])
    return found


def compare_runs(connection: sqlite3.Connection, first: str, second: str) -> list[dict[str, Any]]:
    """Configs that both runs measured in the same scope, with how their gains differ.

    `same_key` says whether both were measured under one validity key.
    """
    before = {_place(row): row for row in run_results(connection, first)}
    rows = []
    for row in run_results(connection, second):
        old = before.get(_place(row))
        if old is None:
            continue
        rows.append(
            {
                "config": row["config"],
                "scope": row["scope"],
                "workload": row["workload"],
                "first_ratio": old["ratio"],
                "second_ratio": row["ratio"],
                "first_ms": old["b_ms"],
                "second_ms": row["b_ms"],
                "change": None if not row["b_ms"] else old["b_ms"] / row["b_ms"],
                "first_verdict": old["verdict"],
                "second_verdict": row["verdict"],
                "same_kernel": int(old["kernel"] == row["kernel"]),
                "same_key": int(_key(old) == _key(row)),
            }
        )
    return rows


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["m"], row["n"], row["k"], row["precision"], row["config"], row["scope"]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["backend"], row["gpu"], row["cublaslt"], row["driver"]
