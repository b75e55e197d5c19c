"""A search's findings as rows, written stage by stage so that an interrupted one keeps them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from kclab.core.stats import Sample
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.fc2.backends import Launch
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM, CONTROL_ARM
from kclab.fc2.config import NAMES, AlgorithmConfig
from kclab.fc2.parity import Parity
from kclab.fc2.search.finals import Result
from kclab.fc2.search.pool import Entry
from kclab.fc2.validity import Validity

COLUMNS = ", ".join(NAMES)
MARKS = ", ".join("?" * len(NAMES))
WHERE = " AND ".join(f"{name} = ?" for name in NAMES)

CONFIG_ID = f"(SELECT id FROM algo_config WHERE {WHERE})"

ADD_CONFIG = f"INSERT INTO algo_config({COLUMNS}) VALUES ({MARKS}) ON CONFLICT DO NOTHING"

ADD_CANDIDATE = f"""
    INSERT INTO fc2_candidate(run_id, boundary_id, config_id, origin, budget, rank,
        required_workspace, waves, status, reason, launch_id, output_class, exact,
        screen_ratio, screen_samples)
    VALUES (?, ?, {CONFIG_ID}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT(run_id, boundary_id, config_id) DO UPDATE SET status = excluded.status,
        reason = excluded.reason, output_class = excluded.output_class, exact = excluded.exact,
        screen_ratio = excluded.screen_ratio, screen_samples = excluded.screen_samples
"""

ADD_CHECK = f"""
    INSERT INTO fc2_check(candidate_id, name, passed, detail)
    SELECT id, ?12, ?13, ?14 FROM fc2_candidate
    WHERE run_id = ?1 AND boundary_id = ?2
        AND config_id = (SELECT id FROM algo_config WHERE
            {" AND ".join(f"{name} = ?{place}" for place, name in enumerate(NAMES, start=3))})
    ON CONFLICT DO NOTHING
"""
"""A thousand configs in three statements: a space has a hundred thousand of them."""


def config_id(connection: sqlite3.Connection, config: AlgorithmConfig) -> int:
    """The id of a config's row, made if new."""
    added = connection.execute(ADD_CONFIG, config.key)
    if added.rowcount == 1:
        return int(added.lastrowid or 0)
    row = connection.execute(f"SELECT id FROM algo_config WHERE {WHERE}", config.key).fetchone()
    return int(row[0])


def launch_id(connection: sqlite3.Connection, launch: Launch | None) -> int | None:
    """The id of a launch's row, made if new."""
    if launch is None:
        return None
    connection.execute(
        "INSERT INTO fc2_launch(sha256, kernel, grid, block, cluster, shared_bytes, kernels,"
        " stream_k) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT(sha256) DO NOTHING",
        (
            launch.sha256,
            launch.kernel,
            *(",".join(map(str, t)) for t in (launch.grid, launch.block, launch.cluster)),
            launch.shared_bytes,
            launch.kernels,
            int(launch.stream_k),
        ),
    )
    row = connection.execute("SELECT id FROM fc2_launch WHERE sha256 = ?", (launch.sha256,))
    return int(row.fetchone()[0])


def validity_id(connection: sqlite3.Connection, validity: Validity) -> int:
    """The id of a validity key's row, made if new."""
    connection.execute(
        "INSERT INTO fc2_validity(sha256, backend, gpu, capability, driver, cublaslt, torch, facts)"
        " VALUES (?,?,?,?,?,?,?,?) ON CONFLICT(sha256) DO NOTHING",
        (
            validity.sha256,
            validity.backend,
            *(validity.column(n) for n in ("gpu", "capability", "driver", "cublaslt", "torch")),
            validity.text,
        ),
    )
    row = connection.execute("SELECT id FROM fc2_validity WHERE sha256 = ?", (validity.sha256,))
    return int(row.fetchone()[0])


class RowSink:
    """Writes what a search of one boundary finds into one run."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        run_id: int,
        boundary_id: int,
        validity: Validity,
        supplied_workspace: int,
    ):
        self._connection = connection
        self._run_id = run_id
        self._boundary_id = boundary_id
        self.supplied_workspace = supplied_workspace
        with writing(connection):
            self.validity_id = validity_id(connection, validity)
        self._launch_ids: dict[Launch, int | None] = {}
        self.result_ids: list[int] = []

    def enumerated(self, budget: int, requested: int, returned: int, error: str | None) -> None:
        """One answer of the heuristic."""
        with writing(self._connection) as tx:
            tx.execute(
                "INSERT INTO fc2_enumeration(run_id, boundary_id, budget, requested, returned,"
                " error) VALUES (?,?,?,?,?,?) ON CONFLICT DO NOTHING",
                (self._run_id, self._boundary_id, budget, requested, returned, error),
            )

    def entries(self, entries: Sequence[Entry]) -> None:
        """Configs that were tried, or whose state has changed."""
        own = (self._run_id, self._boundary_id)
        with writing(self._connection) as tx:
            tx.executemany(ADD_CONFIG, [entry.config.key for entry in entries])
            rows = [self._candidate(tx, entry) for entry in entries]
            tx.executemany(ADD_CANDIDATE, rows)
            tx.executemany(
                ADD_CHECK,
                [
                    (*own, *entry.config.key, check.name, int(check.passed), check.detail)
                    for entry in entries
                    for check in entry.checks
                ],
            )

    def _candidate(self, tx: sqlite3.Connection, entry: Entry) -> tuple[Any, ...]:
        candidate = entry.candidate
        return (
            self._run_id,
            self._boundary_id,
            *candidate.config.key,
            candidate.origin,
            candidate.budget,
            candidate.rank,
            candidate.required_workspace,
            candidate.waves,
            entry.status,
            entry.reason,
            self._launch(tx, entry.launch),
            entry.output_class,
            None if entry.exact is None else int(entry.exact),
            entry.ratio,
            entry.samples,
        )

    def _launch(self, tx: sqlite3.Connection, launch: Launch | None) -> int | None:
        """As `launch_id`; thousands of folded configs share one launch, and its hash costs."""
        if launch is None:
            return None
        if launch not in self._launch_ids:
            self._launch_ids[launch] = launch_id(tx, launch)
        return self._launch_ids[launch]

    def results(self, results: Sequence[Result]) -> None:
        """Finalists that were judged, each with its samples, in one transaction."""
        with writing(self._connection) as tx:
            for result in results:
                self.result_ids.append(self._result(tx, result))

    def _result(self, tx: sqlite3.Connection, result: Result) -> int:
        measurement = add_measurement(tx, self._run_id, result)
        algorithm = result.algorithm
        values = {
            "run_id": self._run_id,
            "boundary_id": self._boundary_id,
            "config_id": config_id(tx, result.config),
            "validity_id": self.validity_id,
            "launch_id": launch_id(tx, result.launch),
            "measurement_id": measurement,
            "scope": result.scope,
            "stage": result.stage,
            "search_seconds": result.search_seconds,
            "baseline": result.baseline,
            "required_workspace": result.candidate.required_workspace,
            "supplied_workspace": self.supplied_workspace,
            "a_ms": result.a_ms,
            "b0_ms": result.b0_ms,
            "b_ms": result.b_ms,
            "ratio": algorithm.ratio.estimate,
            "ratio_low": finite(algorithm.ratio.low),
            "ratio_high": finite(algorithm.ratio.high),
            "baseline_ratio": result.total.ratio.estimate,
            "wrapper_ratio": result.wrapper.ratio.estimate,
            "floor": finite(algorithm.floor),
            "drift": algorithm.drift,
            "pairs": algorithm.pairs,
            "verdict": str(algorithm.verdict),
            "exact": int(result.exact),
            "checked": int(all(check.passed for check in result.checks)),
            "different": result.parity.different,
            "output_sha256": result.parity.actual_sha256,
            "is_control": int(result.is_control),
            "imported": 0,
            "measured_us": now_us(),
        }
        result_id = insert(tx, "fc2_result", values)
        add_parity(tx, result_id, "B:A", result.parity)
        return result_id


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    """Insert one row; its id."""
    marks = ", ".join("?" * len(values))
    cursor = connection.execute(
        f"INSERT INTO {table}({', '.join(values)}) VALUES ({marks})", tuple(values.values())
    )
    return int(cursor.lastrowid or 0)


def add_measurement(connection: sqlite3.Connection, run_id: int, result: Result) -> int:
    """A result's timing summary and its samples, arms named A, B0 and B."""
    algorithm = result.algorithm
    values = {
        "run_id": run_id,
        "name": f"fc2 {result.scope} {result.config.text}",
        "baseline_ms": result.b0_ms,
        "candidate_ms": result.b_ms,
        "ratio": algorithm.ratio.estimate,
        "ratio_low": finite(algorithm.ratio.low),
        "ratio_high": finite(algorithm.ratio.high),
        "pairs": algorithm.pairs,
        "verdict": str(algorithm.verdict),
        "detail": json.dumps({"drift": algorithm.drift, "conditions": dict(result.conditions)}),
    }
    measurement = insert(connection, "measurement", values)
    add_samples(connection, measurement, result.samples)
    return measurement


def add_samples(
    connection: sqlite3.Connection, measurement_id: int, samples: Sequence[Sample]
) -> None:
    """One row a timed execution; a candidate's own name becomes B."""
    fixed = (BASELINE_ARM, CONTROL_ARM)
    connection.executemany(
        "INSERT INTO timing_sample(measurement_id, round, position, arm, ms) VALUES (?,?,?,?,?)",
        [
            (measurement_id, s.round, s.position, s.arm if s.arm in fixed else CANDIDATE_ARM, s.ms)
            for s in samples
        ],
    )


def add_parity(
    connection: sqlite3.Connection, result_id: int, subject: str, parity: Parity
) -> None:
    """How one output compares with another."""
    values = {
        "result_id": result_id,
        "subject": subject,
        "exact": int(parity.exact),
        "elements": parity.elements,
        "different": parity.different,
        "max_abs": None if parity.max_abs is None else finite(parity.max_abs),
        "mean_abs": None if parity.mean_abs is None else finite(parity.mean_abs),
        "actual_sha256": parity.actual_sha256,
        "expected_sha256": parity.expected_sha256,
        "reason": parity.reason,
    }
    insert(connection, "fc2_parity", values)


def finite(value: float) -> float | None:
    """NULL for infinity and NaN: as numbers they would sort first or last."""
    return value if math.isfinite(value) else None
