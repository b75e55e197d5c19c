"""FC2 results for the big database: 50,000 of them, as a year of sweeps leaves."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.times import now_us

RESULTS = 50_000
BOUNDARIES, CONFIGS = 25, 400
STAGES = ("heuristics", "neighbours", "space", "final", "selected")
GPUS = ("NVIDIA H200", "NVIDIA B200")
BUDGETS = tuple(n << 20 for n in (0, 4, 8, 16, 32, 64))


def add_results(connection: sqlite3.Connection, rng: random.Random, runs: list[int]) -> None:
    """Boundaries, configs, two validity keys and results, spread over `runs`."""
    _surroundings(connection)
    measured = int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])
    rows = [_result(rng, number, runs, measured) for number in range(RESULTS)]
    names = list(rows[0])
    connection.executemany(
        f"INSERT INTO fc2_result({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        [tuple(row.values()) for row in rows],
    )
    connection.execute(
        "INSERT INTO fc2_gate(run_id, boundary_id, config_id, validity_id, kind, status, at_us)"
        " SELECT run_id, boundary_id, config_id, validity_id, 'process', 'passed', measured_us"
        " FROM fc2_result WHERE id % 50 = 0"
    )


def _surroundings(connection: sqlite3.Connection) -> None:
    connection.executemany(
        "INSERT INTO fc2_boundary(id, workload_id, precision, m, m_padded, n, k, fast_accumulation,"
        " source, added_us) VALUES (?,?,?,?,?,5376,14336,?,'synthetic',?)",
        [
            (i + 1, i + 1, ("bf16", "fp8_e4m3")[i % 2], 64 * (i + 1), 64 * (i + 1), i % 2, now_us())
            for i in range(BOUNDARIES)
        ],
    )
    connection.executemany(
        "INSERT INTO algo_config VALUES (?,66,?,35,?,?,0,0,0,?)",
        [
            (i + 1, i // 8 + 20, i // 4 % 2 + 1, i // 4 % 2 * 2, i % 4 + 2)
            for i in range(CONFIGS * 2)
        ],
    )
    for number, gpu in enumerate(GPUS):
        facts = canonical_json({"gpu": gpu, "cublaslt": "130100"})
        connection.execute(
            "INSERT INTO fc2_validity(id, sha256, backend, gpu, driver, cublaslt, facts)"
            " VALUES (?,?,'cublaslt',?,'580.1','130100',?)",
            (number + 1, text_sha256(facts), gpu, facts),
        )
    connection.execute(
        "INSERT INTO fc2_launch VALUES (1,?,'nvjet_tst_128x256','1,1,1','384,1,1','2,1,1',0,1,0)",
        ("0" * 64,),
    )


def _result(rng: random.Random, number: int, runs: list[int], measured: int) -> dict[str, Any]:
    ratio = 1 + rng.gauss(0, 0.04)
    verdict = "FAST" if ratio > 1.01 else "SLOW" if ratio < 0.99 else "SAME"
    exact = int(rng.random() < 0.7)
    return {
        "run_id": rng.choice(runs),
        "boundary_id": number % BOUNDARIES + 1,
        "config_id": rng.randrange(CONFIGS) + 1,
        "validity_id": rng.randrange(len(GPUS)) + 1,
        "launch_id": 1,
        "measurement_id": number % measured + 1,
        "scope": "gemm" if number % 3 else "producer+gemm",
        "stage": STAGES[number // 7 % len(STAGES)],
        "search_seconds": 1.0,
        "baseline": "torch.nn.functional.linear",
        "required_workspace": rng.choice(BUDGETS),
        "supplied_workspace": BUDGETS[-1],
        "a_ms": 1.1,
        "b0_ms": 1.0,
        "b_ms": 1 / ratio,
        "ratio": ratio,
        "ratio_low": ratio - 0.002,
        "ratio_high": ratio + 0.002,
        "baseline_ratio": 1.1 * ratio,
        "wrapper_ratio": 1.1,
        "floor": 0.001,
        "drift": 0.0,
        "pairs": 40,
        "verdict": verdict,
        "exact": exact,
        "checked": 1,
        "different": 0 if exact else 7,
        "output_sha256": f"{number % 20:064x}",
        "is_control": int(number % 11 == 0),
        "imported": 0,
        "measured_us": now_us() - number * 1_000_000,
    }
