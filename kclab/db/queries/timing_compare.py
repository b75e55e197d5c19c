"""Timings of two runs: measurements by name, searched GEMM configs by workload, config and scope.

What is compared is each run's ratio to its own control, round by round where the samples are here,
since it holds where clocks or machines differ; what was timed without a control is compared by its
samples: `kclab.core.sessions`.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from kclab.core.sessions import Session, Shift, compare_sessions
from kclab.core.stats import Sample, Verdict
from kclab.db.queries.compared import Change, Compared, Row, join_rows

MEASUREMENTS = """
    SELECT id, name, NULL AS workload, NULL AS place, NULL AS exact, NULL AS floor, candidate_ms,
        ratio, ratio_low, ratio_high
    FROM measurement m WHERE run_id = ?
        AND NOT EXISTS (SELECT 1 FROM fc2_result f WHERE f.measurement_id = m.id)
    ORDER BY name, id
"""

RESULTS = """
    SELECT f.measurement_id AS id, d.name, w.uuid AS workload,
        concat_config || ' ' || f.scope AS place, f.exact, f.floor, f.b_ms AS candidate_ms, f.ratio,
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
        shift = compare_sessions(timed_session(connection, a), timed_session(connection, b))
        yield _timing(_timing_change(a, b, shift), a, b, shift)
    yield from (_timing(Change.VANISHED, a, None) for a in first)
    yield from (_timing(Change.APPEARED, None, b) for b in second)


def _timings(connection: sqlite3.Connection, run_id: int) -> list[Row]:
    measured = connection.execute(MEASUREMENTS, (run_id,)).fetchall()
    last = {
        (row["name"], row["workload"], row["place"]): row
        for row in connection.execute(RESULTS, (run_id,))
    }
    return [*measured, *last.values()]


def timed_session(connection: sqlite3.Connection, row: Row) -> Session:
    """What a row with `id` (its measurement's), ratio, ratio_low, ratio_high and floor rests on."""
    samples = connection.execute(
        "SELECT round, position, arm, ms FROM timing_sample WHERE measurement_id = ?"
        " ORDER BY round, position",
        (row["id"],),
    )
    return Session(
        [Sample(*sample) for sample in samples],
        row["ratio"],
        row["ratio_low"],
        row["ratio_high"],
        row["floor"],
    )


CHANGES = {
    Verdict.FAST: Change.BETTER,
    Verdict.SLOW: Change.WORSE,
    Verdict.SAME: Change.SAME,
    Verdict.UNDECIDED: Change.UNDECIDED,
}


def _timing_change(a: Row, b: Row, shift: Shift | None) -> Change:
    if a["exact"] != b["exact"]:
        return Change.BETTER if b["exact"] else Change.WORSE
    if shift is not None:
        return CHANGES[shift.verdict]
    return Change.SAME if a["ratio"] == b["ratio"] else Change.CHANGED


def shift_fields(shift: Shift | None) -> dict[str, Any]:
    """A shift as the fields of a row: gain, its interval (None where unbounded), noise, verdict,
    basis.
    """
    if shift is None:
        return dict.fromkeys(("gain", "gain_low", "gain_high", "noise", "verdict", "basis"))
    bounded = bool(shift.ratio.coverage) and math.isfinite(shift.ratio.high)
    return {
        "gain": shift.ratio.estimate,
        "gain_low": shift.ratio.low if bounded else None,
        "gain_high": shift.ratio.high if bounded else None,
        "noise": shift.floor,
        "verdict": shift.verdict.value,
        "basis": shift.basis.value,
    }


def _timing(change: Change, a: Row | None, b: Row | None, shift: Shift | None = None) -> Compared:
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
        **shift_fields(shift),
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
