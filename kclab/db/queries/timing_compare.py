"""Timings of two runs: measurements by name, searched GEMM configs by workload, config and scope.

What is compared is each run's ratio to its own control, since it holds where clocks or machines
differ. A change counts when the confidence intervals do not overlap and it is beyond MARGIN. What
was timed without a control is compared by its samples.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from kclab.core.stats import MARGIN, SAMENESS_LIMIT, Verdict, judge
from kclab.core.unpaired import shift_interval
from kclab.db.queries.compared import Change, Compared, Row, join_rows

MEASUREMENTS = """
    SELECT id, name, NULL AS workload, NULL AS place, NULL AS exact, candidate_ms, ratio, ratio_low,
        ratio_high
    FROM measurement m WHERE run_id = ?
        AND NOT EXISTS (SELECT 1 FROM fc2_result f WHERE f.measurement_id = m.id)
    ORDER BY name, id
"""

RESULTS = """
    SELECT NULL AS id, d.name, w.uuid AS workload,
        concat_config || ' ' || f.scope AS place, f.exact, f.b_ms AS candidate_ms, f.ratio,
        f.ratio_low, f.ratio_high
    FROM fc2_result f JOIN fc2_boundary b ON b.id = f.boundary_id
        JOIN workload w ON w.id = b.workload_id JOIN definition d ON d.id = w.definition_id
        JOIN algo_config c ON c.id = f.config_id
    WHERE f.run_id = ? ORDER BY f.id
""".replace(
    "concat_config",
    " || ':' || ".join(
        f"c.{name}"
        for name in ("algorithm_id", "tile_id", "stages_id", "split_k", "reduction_scheme",
                     "cta_swizzle", "custom_option", "inner_shape", "cluster_shape")
    ),
)  # fmt: skip
"""A search may measure a config more than once: the last result stands for it."""


def compare_timings(connection: sqlite3.Connection, run_a: int, run_b: int) -> Iterable[Compared]:
    """Every timing that either of two runs (ids) took."""
    pairs, first, second = join_rows(
        _timings(connection, run_a),
        _timings(connection, run_b),
        lambda row: (row["name"], row["workload"], row["place"]),
    )
    for a, b in pairs:
        change = _plain_change(connection, a, b) if a["id"] and b["id"] else None
        yield _timing(change or _timing_change(a, b), a, b)
    yield from (_timing(Change.VANISHED, a, None) for a in first)
    yield from (_timing(Change.APPEARED, None, b) for b in second)


def _timings(connection: sqlite3.Connection, run_id: int) -> list[Row]:
    measured = connection.execute(MEASUREMENTS, (run_id,)).fetchall()
    last = {
        (row["name"], row["workload"], row["place"]): row
        for row in connection.execute(RESULTS, (run_id,))
    }
    return [*measured, *last.values()]


def _plain_change(connection: sqlite3.Connection, a: Row, b: Row) -> Change | None:
    """The change of a time that has no control in either run; None where one has."""
    if a["ratio"] is not None or b["ratio"] is not None:
        return None
    before, after = (_samples(connection, row["id"]) for row in (a, b))
    if not before or not after:
        return None
    # No A/A samples span the two sessions; sameness is held to its own limit.
    verdict = judge(shift_interval(before, after), SAMENESS_LIMIT)
    return {Verdict.FAST: Change.BETTER, Verdict.SLOW: Change.WORSE}.get(verdict, Change.SAME)


def _samples(connection: sqlite3.Connection, measurement_id: int) -> list[float]:
    rows = connection.execute(
        "SELECT ms FROM timing_sample WHERE measurement_id = ? ORDER BY round, position",
        (measurement_id,),
    )
    return [float(row[0]) for row in rows]


def _timing_change(a: Row, b: Row) -> Change:
    if a["exact"] != b["exact"]:
        return Change.BETTER if b["exact"] else Change.WORSE
    if a["ratio"] is None or b["ratio"] is None:
        return Change.SAME if a["ratio"] == b["ratio"] else Change.CHANGED
    gain = b["ratio"] / a["ratio"]
    if gain > 1 + MARGIN and _above(b, a):
        return Change.BETTER
    return Change.WORSE if gain < 1 / (1 + MARGIN) and _above(a, b) else Change.SAME


def _above(high: Row, low: Row) -> bool:
    """Whether one's interval lies wholly above the other's; unbounded ones never do."""
    bounds = (high["ratio_low"], low["ratio_high"])
    return None not in bounds and bounds[0] > bounds[1]


def _timing(change: Change, a: Row | None, b: Row | None) -> Compared:
    row = b if b is not None else a
    assert row is not None
    return Compared(
        change=change,
        kind="timing",
        name=row["name"],
        workload=row["workload"],
        module_path=row["place"],
        operation=None,
        step=None,
        rank=None,
        before=None if a is None else _told_ratio(a),
        after=None if b is None else _told_ratio(b),
    )


def _told_ratio(row: Row) -> str:
    inexact = "" if row["exact"] in (None, 1) else ", not exact"
    return f"{_ratio(row)}{inexact}"


def _ratio(row: Row) -> str:
    if row["ratio"] is None:
        return "not measured" if row["candidate_ms"] is None else f"{row['candidate_ms']:.4g} ms"
    if row["ratio_low"] is None or row["ratio_high"] is None:
        return f"{row['ratio']:.3f}x"
    return f"{row['ratio']:.3f}x ({row['ratio_low']:.3f}..{row['ratio_high']:.3f})"
