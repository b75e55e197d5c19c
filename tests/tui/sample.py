"""The sample store of the command line's tests, with an oracle's word and FC2 results besides.

Every id, time and sample is fixed: two GEMMs on one GPU, five configs, one of them measured again
after an upgrade of cuBLASLt.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.stats import Sample, compare_arms, median
from kclab.db.connection import writing
from kclab.db.store import Store
from tests.cli import sample
from tests.cli.sample import HOUR, NOW_US

SWEEP = "019ad3f7-0001-7000-8000-0000000000f1"
OLD_SWEEP = "019ad3f0-0001-7000-8000-0000000000f2"
PAIRS = 24
MIB = 1 << 20

CONFIGS = (
    (66, 31, 35, 1, 0, 0, 1, 0, 3),
    (66, 24, 35, 2, 2, 1, 0, 0, 3),
    (66, 15, 36, 4, 2, 0, 1, 0, 2),
    (24, 20, 15, 1, 0, 0, 0, 0, 0),
    (66, 31, 36, 1, 0, 1, 1, 0, 7),
)

# (boundary, config, gain of B over B0, workspace, exact)
RESULTS = (
    (1, 0, 1.0, 0, 1),
    (1, 1, 1.043, 4 * MIB, 1),
    (1, 2, 1.086, 24 * MIB, 1),
    (1, 3, 0.94, 0, 1),
    (1, 4, 1.11, 0, 0),
    (2, 0, 1.0, 0, 1),
    (2, 2, 1.021, 24 * MIB, 1),
)


def fill(store: Store) -> None:
    """Put all rows into an empty store."""
    sample.fill(store)
    with closing(store.write()) as connection, writing(connection):
        _oracle(connection)
        _in_place(connection)
        _fc2(connection)


def _oracle(connection: sqlite3.Connection) -> None:
    """The worst element of the one failure, and the oracle's word on it."""
    failed = "(SELECT id FROM replay WHERE status = 'failed')"
    connection.execute(
        "UPDATE replay_output SET worst_index = '[3, 7]', worst_engine = '1.25',"
        f" worst_reference = '1.0' WHERE replay_id = {failed}"
    )
    connection.execute(
        "INSERT INTO oracle_output(replay_id, ordinal, verdict, engine_max_ulp, engine_rms_ulp,"
        " engine_max_abs, reference_max_ulp, reference_rms_ulp, reference_max_abs, bound_ulp)"
        f" VALUES ({failed}, 0, 'engine', 32.0, 4.1, 0.25, 0.5, 0.29, 0.004, 1.5)"
    )


# definition to how many verdicts of each status
IN_PLACE = {
    "gated_delta_rule_prefill_hv32_k128_v128": {"passed": 96, "failed": 4},
    "prefix_cached_block_causal_h24_d128": {"passed": 40},
    "rmsnorm_h4096": {"passed": 7, "error": 2, "skipped": 1},
}


def _in_place(connection: sqlite3.Connection) -> None:
    """Verdicts on a dataset that was replayed where it lies: they hang on no capture."""
    number = 0
    for definition, counts in IN_PLACE.items():
        for status, count in counts.items():
            for _ in range(count):
                number += 1
                _insert(
                    connection,
                    "replay",
                    {"run_id": 3, "subject": f"{number:08x}-1111-5000-8000-000000000000",
                     "definition": definition, "status": status, "imported": 0,
                     "origin": f"dataset/captures.jsonl:{number}", "device": "cpu",
                     "warning": "every element is zero" if number % 30 == 0 else None,
                     "reason": None if status == "passed" else f"why it {status}",
                     "started_us": NOW_US - 25 * HOUR + number * 1_000_000},
                )  # fmt: skip


def _fc2(connection: sqlite3.Connection) -> None:
    sample._run(
        connection, SWEEP, 0.75, command="fc2", mode="sweep",
        summary="7 configs judged, best +8.6 % exact",
    )  # fmt: skip
    sample._run(connection, OLD_SWEEP, 700, command="fc2", mode="sweep", summary="1 config judged")
    runs = dict(connection.execute("SELECT uuid, id FROM run"))
    for workload, rows in ((1, (4096, 4096)), (2, (1000, 1024))):
        connection.execute(
            "INSERT INTO fc2_boundary(id, workload_id, precision, m, m_padded, n, k,"
            " fast_accumulation, source, added_us)"
            " VALUES (?, ?, 'fp8_e4m3', ?, ?, 6144, 24576, 0, 'synthetic', ?)",
            (workload, workload, *rows, NOW_US - 2 * HOUR),
        )
    names = ("algorithm_id", "tile_id", "stages_id", "split_k", "reduction_scheme", "cta_swizzle",
             "custom_option", "inner_shape", "cluster_shape")  # fmt: skip
    for number, config in enumerate(CONFIGS):
        _insert(
            connection, "algo_config", {"id": number + 1, **dict(zip(names, config, strict=True))}
        )
    for number, version in ((1, "13.1.0"), (2, "13.2.1")):
        facts = {"backend": "cublaslt", "gpu": "NVIDIA B200", "cublaslt": version, "torch": "2.13"}
        text = canonical_json(facts)
        _insert(
            connection,
            "fc2_validity",
            {"id": number, "sha256": text_sha256(text), **facts, "driver": "580.10", "facts": text},
        )
    _insert(
        connection,
        "fc2_launch",
        {"id": 1, "sha256": "1" * 64, "kernel": "cutlass3x_sm100_bstensorop_ue4m3_128x256",
         "grid": "148,1,1", "block": "384,1,1", "cluster": "2,1,1", "shared_bytes": 200_000,
         "kernels": 1, "stream_k": 0},
    )  # fmt: skip
    rng = random.Random(5)
    for number, (boundary, config, gain, workspace, exact) in enumerate(RESULTS):
        _result(
            connection, rng, runs[SWEEP], boundary, config, gain, workspace=workspace,
            exact=exact, validity=2, at=NOW_US - HOUR + number * 60_000_000,
        )  # fmt: skip
    _result(
        connection, rng, runs[OLD_SWEEP], 1, 2, 1.052, workspace=24 * MIB, exact=1, validity=1,
        at=NOW_US - 700 * HOUR,
    )  # fmt: skip
    _gates(connection, runs[SWEEP])


def _gates(connection: sqlite3.Connection, run: int) -> None:
    for kind, detail in (("process", {"fresh": 3}), ("block", {"exact": True})):
        _insert(
            connection,
            "fc2_gate",
            {"run_id": run, "boundary_id": 1, "config_id": 3, "validity_id": 2, "kind": kind,
             "status": "passed", "detail": json.dumps(detail), "at_us": NOW_US - HOUR // 2},
        )  # fmt: skip


def _samples(rng: random.Random, gain: float) -> list[Sample]:
    """ABBA rounds of three arms around 1 ms that drift by 2 %, with an outlier now and then."""
    found = []
    for number in range(PAIRS):
        drift = 1 + 0.02 * number / PAIRS
        arms = (("A", 1.03), ("B0", 1.0), ("B", 1 / gain))
        for position, (arm, base) in enumerate([*arms, *arms[::-1]]):
            noise = abs(rng.gauss(0, 0.004)) + (0.12 if rng.random() < 0.02 else 0)
            found.append(Sample(number, position, arm, round(base * drift * (1 + noise), 6)))
    return found


def _result(
    connection: sqlite3.Connection, rng: random.Random, run: int, boundary: int, config: int,
    gain: float, *, workspace: int, exact: int, validity: int, at: int,
) -> None:  # fmt: skip
    samples = _samples(rng, gain)
    compared = compare_arms(samples, "B0", "B")
    wrapper, total = compare_arms(samples, "A", "B0"), compare_arms(samples, "A", "B")
    measurement = _insert(
        connection, "measurement", {"run_id": run, "name": f"fc2 gemm {config}", "pairs": PAIRS}
    )
    connection.executemany(
        "INSERT INTO timing_sample(measurement_id, round, position, arm, ms) VALUES (?,?,?,?,?)",
        [(measurement, s.round, s.position, s.arm, s.ms) for s in samples],
    )
    times = {arm: median([s.ms for s in samples if s.arm == arm]) for arm in ("A", "B0", "B")}
    result = _insert(
        connection,
        "fc2_result",
        {
            "run_id": run, "boundary_id": boundary, "config_id": config + 1,
            "validity_id": validity, "launch_id": 1, "measurement_id": measurement,
            "scope": "gemm", "stage": "final", "search_seconds": 12.5,
            "baseline": "torch._scaled_mm", "required_workspace": workspace,
            "supplied_workspace": 64 * MIB, "a_ms": times["A"], "b0_ms": times["B0"],
            "b_ms": times["B"], "ratio": compared.ratio.estimate,
            "ratio_low": compared.ratio.low, "ratio_high": compared.ratio.high,
            "baseline_ratio": total.ratio.estimate, "wrapper_ratio": wrapper.ratio.estimate,
            "floor": compared.floor, "drift": compared.drift, "pairs": compared.pairs,
            "verdict": str(compared.verdict), "exact": exact, "checked": 1,
            "different": 0 if exact else 184, "is_control": int(config == 0), "imported": 0,
            "measured_us": at,
        },
    )  # fmt: skip
    _insert(
        connection,
        "fc2_parity",
        {"result_id": result, "subject": "B:A", "exact": exact, "elements": 4096 * 6144,
         "different": 0 if exact else 184, "max_abs": 0.0 if exact else 0.0625,
         "mean_abs": 0.0, "actual_sha256": "a" * 64, "expected_sha256": "a" * 64},
    )  # fmt: skip


def _insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    names: Sequence[str] = list(values)
    marks = ", ".join("?" for _ in names)
    cursor = connection.execute(
        f"INSERT INTO {table}({', '.join(names)}) VALUES ({marks})", tuple(values.values())
    )
    return int(cursor.lastrowid or 0)
