"""A small store whose every id and time is fixed, so that what is printed about it is too.

Two capture runs of one model (the second computes another output at one site and meets one site
less), a replay of each, two benchmark runs, a run that died, and one that found nothing.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any

from kclab.core.digest import canonical_json, tensor_digest
from kclab.core.when import to_us
from kclab.db.connection import writing
from kclab.db.rows import (
    BlobRow,
    CaptureRow,
    InputValue,
    add_blobs,
    add_capture,
    add_definition,
    add_workload,
)
from kclab.db.runs import add_environment
from kclab.db.store import Store
from kclab.db.verdicts import OutputVerdict, ReplayRow, add_replay

NOW = "2026-11-30T10:15:30Z"
NOW_US = to_us(datetime.fromisoformat(NOW))
HOUR = 3_600_000_000

BODY = {
    "name": "dense_gemm_bf16_nt_n64_k32",
    "op_type": "gemm",
    "reference": "def run(A, W):\n    return A @ W.T",
}
FACTS = {"os": "Linux 6.8", "python": "3.11.7", "torch": "2.13.0", "machine": "x86_64"}

CAPTURE_A = "019ad3f2-1c44-7000-8000-00000000000a"
CAPTURE_B = "019ad3f2-9d10-7000-8000-00000000000b"
REPLAY_A = "019ad3f3-0001-7000-8000-00000000000a"
REPLAY_B = "019ad3f3-0002-7000-8000-00000000000b"
BENCH_A = "019ad3f4-0001-7000-8000-00000000000a"
BENCH_B = "019ad3f4-0002-7000-8000-00000000000b"
DEAD = "019ad3f5-0001-7000-8000-00000000000d"
EMPTY = "019ad3f6-0001-7000-8000-00000000000e"

WORKLOADS = [f"{n:08x}-0000-5000-8000-000000000000" for n in (0xA1B2C3D4, 0xA1B2FFFF, 0x0C0FFEE0)]


def fill(store: Store) -> None:
    """Put the sample rows, and the bytes of the first workload, into an empty store."""
    with closing(store.write()) as connection, writing(connection):
        plain = add_environment(connection, FACTS)
        newer = add_environment(connection, {**FACTS, "torch": "2.14.0"})
        _runs(connection, plain, newer)
        _captures(connection)
        _coverage(connection)
        _replays(connection)
        _timings(connection)
    _write_first_inputs(store)


def _run(connection: sqlite3.Connection, uuid: str, hours: float, **fields: Any) -> None:
    started = NOW_US - int(hours * HOUR)
    row = {
        "uuid": uuid,
        "command": "capture",
        "status": "passed",
        "started_us": started,
        "finished_us": started + 3_420_000,
        "heartbeat_us": started + 3_420_000,
        "pid": 4242,
        "environment_id": 1,
        "exit_code": 0,
        "host": "bench",
        "git_commit": "7ac65cc0a1b2c3d4e5f60718293a4b5c6d7e8f90",
        "git_dirty": 1,
        "argv": json.dumps(["kclab", fields.get("command", "capture")]),
        "params": "{}",
        **fields,
    }
    names = ", ".join(row)
    marks = ", ".join("?" for _ in row)
    connection.execute(f"INSERT INTO run({names}) VALUES ({marks})", tuple(row.values()))


def _runs(connection: sqlite3.Connection, plain: int, newer: int) -> None:
    argv = json.dumps(["kclab", "capture", "run", "--", "python", "my model.py"])
    params = {
        "adapter": ["torch"],
        "steps": [0, 4],
        "limits": {"max_per_axes": 4, "max_bytes": None},
    }
    _run(
        connection,
        CAPTURE_A,
        50,
        mode="run",
        argv=argv,
        params=json.dumps(params),
        summary="3 captured, 1 definition",
        environment_id=plain,
    )
    params["steps"] = [0, 7]
    _run(
        connection,
        CAPTURE_B,
        26,
        mode="run",
        argv=argv,
        params=json.dumps(params),
        summary="2 captured, 1 definition",
        environment_id=newer,
        git_dirty=0,
    )
    _run(connection, REPLAY_A, 25, command="replay", summary="3 passed")
    _run(
        connection,
        REPLAY_B,
        2,
        command="replay",
        status="failed",
        exit_code=1,
        summary="1 of 2 failed",
    )
    _run(connection, BENCH_A, 1.5, command="benchmark", summary="2 timings")
    _run(connection, BENCH_B, 1, command="benchmark", summary="2 timings")
    _run(connection, DEAD, 0.5, status="running", finished_us=None, exit_code=None)
    _run(connection, EMPTY, 0.1, status="empty", exit_code=3, summary="no call was captured")
    connection.execute("INSERT INTO run_tag(run_id, tag) VALUES (1, 'baseline'), (1, 'keep')")
    connection.execute("UPDATE run SET note = 'before the upgrade' WHERE id = 1")


def _blob(number: int, shape: tuple[int, ...]) -> BlobRow:
    elements = 1
    for size in shape:
        elements *= size
    data = bytes([number]) * (2 * elements)
    return BlobRow(tensor_digest("bfloat16", shape, data), "bfloat16", shape, 2 * elements)


ACTIVATION = [_blob(n, (8 << n, 32)) for n in range(3)]
WEIGHT = _blob(9, (64, 32))
OUTPUT = [_blob(20 + n, (8 << n, 64)) for n in range(3)]
OTHER_OUTPUT = _blob(30, (16, 64))


def _captures(connection: sqlite3.Connection) -> None:
    definition = add_definition(connection, BODY, family="dense_gemm")
    add_blobs(connection, [*ACTIVATION, WEIGHT, *OUTPUT, OTHER_OUTPUT])
    workloads = [
        add_workload(
            connection,
            uuid,
            definition,
            {"M": 8 << n},
            {"A": InputValue(blob=ACTIVATION[n].sha256), "W": InputValue(blob=WEIGHT.sha256)},
        )[0]
        for n, uuid in enumerate(WORKLOADS)
    ]
    connection.execute("UPDATE workload SET added_us = ?", (NOW_US - 50 * HOUR,))
    for n, workload in enumerate(workloads):
        _capture(connection, 1, workload, n, NOW_US - 50 * HOUR, OUTPUT[n])
    for n, workload in enumerate(workloads[:2]):
        output = OTHER_OUTPUT if n == 1 else OUTPUT[n]
        _capture(connection, 2, workload, n, NOW_US - 26 * HOUR, output)


def _capture(
    connection: sqlite3.Connection, run: int, workload: int, n: int, at: int, output: BlobRow
) -> None:
    module = f"blocks.{n}.attn.to_out.0"
    site = {"definition": BODY["name"], "module_path": module, "operation": "linear", "step": 4 * n}
    add_capture(
        connection,
        run,
        workload,
        CaptureRow(
            uuid=f"{run}{n}000000-0000-5000-8000-000000000000",
            operation="linear",
            site=canonical_json(site),
            captured_us=at + n * 1_000_000,
            receipt={"model": "toy", "strides": {"A": [32, 1]}},
            outputs=[("C", output.sha256)],
            request_id="r0",
            module_path=module,
            step=4 * n,
            variant=f"rows_{8 << n}",
            process_id=4242,
            device="cpu",
            stall_us=120,
        ),
    )
    connection.execute("UPDATE capture SET arrived_us = captured_us + 1000")


def _coverage(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO capture_worker(run_id, process, acknowledged_us, drained_us)"
        " VALUES (1, 'bench:4242:1', ?, ?)",
        (NOW_US - 50 * HOUR, NOW_US - 50 * HOUR + 3_000_000),
    )
    counts = [
        (1, BODY["name"], "seen", 1200),
        (1, BODY["name"], "captured", 3),
        (1, "aten.conv2d", "no definition", 7),
        (8, "aten.conv2d", "no definition", 2),
    ]
    connection.executemany(
        "INSERT INTO capture_count(run_id, process, definition, outcome, count)"
        " VALUES (?, 'bench:4242:1', ?, ?, ?)",
        counts,
    )


def _replays(connection: sqlite3.Connection) -> None:
    for n in range(3):
        _replay(connection, 3, n, capture_id=n + 1, hours=25, mismatched=0)
    for n in range(2):
        _replay(connection, 4, n, capture_id=n + 4, hours=2, mismatched=12 * n)


def _replay(
    connection: sqlite3.Connection,
    run: int,
    n: int,
    *,
    capture_id: int,
    hours: int,
    mismatched: int,
) -> None:
    verdict = OutputVerdict(
        name="C", dtype="bfloat16", passed=not mismatched, policy="allclose", rtol=0.016,
        atol=0.005, elements=(8 << n) * 64, mismatched=mismatched,
        max_abs=0.25 if mismatched else 0.0, rms=0.0, relative_rms=0.02 if mismatched else 0.0,
    )  # fmt: skip
    reason = "C: 12 of 1024 elements are off, the worst at [3, 7]: 1.25 for 1.0"
    add_replay(
        connection,
        run,
        ReplayRow(
            subject=WORKLOADS[n],
            definition=BODY["name"],
            status="failed" if mismatched else "passed",
            started_us=NOW_US - hours * HOUR + n,
            workload_id=n + 1,
            definition_id=1,
            capture_id=capture_id,
            reason=reason if mismatched else None,
            device="cpu",
            outputs=[verdict],
        ),
    )


def _timings(connection: sqlite3.Connection) -> None:
    rows = [
        (5, "replay 4000", 86_000.0, 7_200.0, 11.94, 11.8, 12.1),
        (5, "import 2000", 200.0, 400.0, 0.5, 0.48, 0.52),
        (6, "replay 4000", 86_000.0, 7_900.0, 10.89, 10.7, 11.0),
        (6, "import 2000", 200.0, 390.0, 0.513, 0.49, 0.53),
    ]
    connection.executemany(
        "INSERT INTO measurement(run_id, name, baseline_ms, candidate_ms, ratio, ratio_low,"
        " ratio_high, pairs, verdict) VALUES (?,?,?,?,?,?,?,7,'FAST')",
        rows,
    )


def _write_first_inputs(store: Store) -> None:
    """Bytes for workload 0 alone: the blobs of the others are missing."""
    batch = store.blobs.batch()
    for number, blob in ((0, ACTIVATION[0]), (9, WEIGHT), (20, OUTPUT[0])):
        batch.add(blob.dtype, blob.shape, bytes([number]) * blob.nbytes)
    batch.sync()
