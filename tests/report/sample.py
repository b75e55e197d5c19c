"""A store with one of everything that a report shows, on top of the command line's sample."""

from __future__ import annotations

import math
import random
import sqlite3
from contextlib import closing

from kclab.db.connection import writing
from kclab.db.store import Store
from kclab.db.verdicts import OracleVerdict, OutputVerdict, ReplayRow, add_replay
from tests.cli.sample import NOW_US, fill

HOUR = 3_600_000_000
NASTY = "<script>alert('x')</script> | `a` [b](http://evil.example) @all & \"c\""

SEARCH = """
    INSERT INTO fc2_boundary(id, workload_id, precision, m, m_padded, n, k, fast_accumulation,
        source, added_us) VALUES (1, 3, 'bf16', 32, 32, 64, 32, 0, 'captured', 0);
    INSERT INTO algo_config VALUES (1, 66, 600, 36, 1, 0, 0, 0, 0, 2);
    INSERT INTO fc2_validity(id, sha256, backend, gpu, facts)
        VALUES (1, 'a', 'cpu', 'Test GPU', '{"driver": "575"}'),
               (2, 'b', 'cpu', 'Test GPU', '{"driver": "580"}');
"""


def fill_report(store: Store, *, slower: float = 1.03) -> None:
    """A failure with its worst element, a note that is an attack, a timing that became slower."""
    fill(store)
    with closing(store.write()) as connection, writing(connection):
        connection.execute("UPDATE run SET note = ? WHERE id = 6", (NASTY,))
        _failure(connection)
        _searches(connection, slower)


def _failure(connection: sqlite3.Connection) -> None:
    (workload,) = connection.execute("SELECT uuid FROM workload WHERE id = 1").fetchone()
    output = OutputVerdict(
        name="C", dtype="bfloat16", passed=False, policy="close", elements=512, mismatched=7,
        rtol=0.01, atol=0.01, max_abs=0.25, relative_rms=0.02, worst_index=(3, 17),
        worst_engine="1.75", worst_reference="1.5",
    )  # fmt: skip
    oracle = OracleVerdict("engine off", engine_max_ulp=41.0, reference_max_ulp=0.5)
    verdict = ReplayRow(
        workload, "dense_gemm_bf16_nt_n64_k32", "failed", NOW_US - HOUR, workload_id=1,
        definition_id=1, capture_id=1, outputs=[output], oracle=[oracle],
    )  # fmt: skip
    add_replay(connection, 4, verdict)


def _searches(connection: sqlite3.Connection, slower: float) -> None:
    for statement in SEARCH.split(";")[:-1]:
        connection.execute(statement)
    rng = random.Random(11)
    for number, (run_id, factor) in enumerate(((5, 1.0), (6, slower))):
        measurement = connection.execute(
            "INSERT INTO measurement(run_id, name, pairs) VALUES (?, 'fc2', 40)", (run_id,)
        ).lastrowid
        ratio = 1.1 / factor
        connection.executemany(
            "INSERT INTO timing_sample(measurement_id, round, position, arm, ms)"
            " VALUES (?,?,?,?,?)",
            [
                (
                    measurement,
                    n,
                    p,
                    arm,
                    math.exp(rng.gauss(0, 0.01)) / (ratio if arm == "B" else 1),
                )
                for n in range(40)
                for p, arm in enumerate(("A", "B0", "B", "B", "B0", "A"))
            ],
        )
        connection.execute(
            "INSERT INTO fc2_result(run_id, boundary_id, config_id, validity_id, measurement_id,"
            " scope, stage, baseline, required_workspace, supplied_workspace, b_ms, ratio,"
            " ratio_low, ratio_high, floor, pairs, verdict, exact, checked, is_control, imported,"
            " measured_us) VALUES (?, 1, 1, ?, ?, 'gemm', 'final', 'F.linear', 0, 0, ?, ?, ?, ?,"
            " 0.004, 40, 'FAST', 1, 1, 0, 0, ?)",
            (
                run_id, number + 1, measurement, 1 / ratio, ratio, ratio * 0.997, ratio * 1.003,
                NOW_US - (2 - number) * HOUR,
            ),
        )  # fmt: skip
