"""A database of the size that a year of work leaves, to measure looking on.

    python -m benchmarks.big_database FOLDER/kclab.db [--runs 5000] [--samples 1000000]

Runs spread evenly over the last 365 days, a tenth of them in the last two; 20,000 captures of
2,000 workloads with 50,000 verdicts; 50,000 FC2 results; timing samples in pairs, 200 a
measurement. The content is seeded: the same call writes the same rows, times aside. No blobs are
written.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fc2_results import add_results
from kclab.core.digest import text_sha256
from kclab.core.times import now_us
from kclab.db.connection import connect_write, writing
from kclab.db.migrate import ensure_current
from kclab.db.runs import add_environment

DAY_US = 86_400_000_000
CAPTURES = 20_000
WORKLOADS = 2_000
REPLAYS = 50_000
PER_MEASUREMENT = 200
COMMANDS = ("capture", "replay", "import", "fc2", "benchmark")


def build(path: Path, runs: int = 5_000, samples: int = 1_000_000, seed: int = 1) -> None:
    """Make a new database at `path`; it must not exist."""
    if path.exists():
        raise SystemExit(f"{path} exists; name a new file.")
    ensure_current(path)
    rng = random.Random(seed)
    connection = connect_write(path)
    try:
        with writing(connection):
            _runs(connection, rng, runs)
            _workloads(connection, rng)
            _captures(connection, rng, runs)
            _replays(connection, rng, runs)
            _measurements(connection, rng, runs, samples)
            add_results(connection, rng, list(range(4, runs + 1, len(COMMANDS))))
        connection.execute("ANALYZE")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _started(rng: random.Random, count: int) -> list[int]:
    now = now_us()
    ages = [rng.random() * (2 if i % 10 == 0 else 365) * DAY_US for i in range(count)]
    return sorted(now - int(age) for age in ages)


def _uuid7(rng: random.Random, at_us: int) -> str:
    value = (at_us // 1000) << 80 | rng.getrandbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def _runs(connection: sqlite3.Connection, rng: random.Random, count: int) -> None:
    environments = [
        add_environment(
            connection,
            {"os": "Linux 6.8", "python": "3.11.7", "torch": torch, "gpu": gpu, "cuda": "13.0"},
        )
        for torch in ("2.12.0", "2.13.0")
        for gpu in ("NVIDIA H200", "NVIDIA B200")
    ]
    rows = []
    for number, at in enumerate(_started(rng, count)):
        status = rng.choices(("passed", "failed", "empty", "interrupted"), (90, 6, 2, 2))[0]
        end = at + rng.randrange(1_000_000, 600_000_000)
        command = COMMANDS[number % len(COMMANDS)]
        rows.append(
            (
                number + 1,
                _uuid7(rng, at),
                command,
                status,
                at,
                end,
                end,
                rng.choice(environments),
                json.dumps(["kclab", command]),
                json.dumps({"definition": ["dense_gemm_*"], "jobs": number % 4}),
                f"{rng.randrange(1, 400)} rows of {command}",
            )
        )
    connection.executemany(
        "INSERT INTO run(id, uuid, command, status, started_us, finished_us, heartbeat_us, pid,"
        " host, environment_id, argv, params, summary) VALUES (?,?,?,?,?,?,?,1,'bench',?,?,?,?)",
        rows,
    )
    connection.executemany(
        "INSERT INTO run_tag(run_id, tag) VALUES (?, 'keep')", [(i,) for i in range(1, count, 50)]
    )


def _workloads(connection: sqlite3.Connection, rng: random.Random) -> None:
    blobs = [(f"{i:064x}", "bfloat16", "[64, 64]", 8192, now_us()) for i in range(2 * WORKLOADS)]
    connection.executemany(
        "INSERT INTO blob(sha256, dtype, shape, nbytes, present, added_us) VALUES (?,?,?,?,1,?)",
        blobs,
    )
    for number in range(10):
        body = {"name": f"dense_gemm_bf16_nt_n{64 << number}_k64", "reference": "def run(): ..."}
        connection.execute(
            "INSERT INTO definition(id, name, sha256, op_type, reference_sha256, body, added_us)"
            " VALUES (?,?,?,'gemm',?,?,?)",
            (
                number + 1,
                body["name"],
                text_sha256(json.dumps(body)),
                text_sha256(body["reference"]),
                json.dumps(body),
                now_us(),
            ),
        )
    connection.executemany(
        "INSERT INTO workload(id, uuid, definition_id, axes, added_us) VALUES (?,?,?,?,?)",
        [
            (i + 1, str(uuid.UUID(int=rng.getrandbits(128))), i % 10 + 1, f'{{"M": {i}}}', now_us())
            for i in range(WORKLOADS)
        ],
    )
    connection.executemany(
        "INSERT INTO workload_input(workload_id, name, blob_sha256) VALUES (?,?,?)",
        [
            (i + 1, name, f"{2 * i + n:064x}")
            for i in range(WORKLOADS)
            for n, name in enumerate("AW")
        ],
    )


def _captures(connection: sqlite3.Connection, rng: random.Random, runs: int) -> None:
    owners = [1 + len(COMMANDS) * rng.randrange(runs // len(COMMANDS)) for _ in range(CAPTURES)]
    starts = dict(connection.execute("SELECT id, started_us FROM run"))
    connection.executemany(
        "INSERT INTO capture(id, uuid, run_id, workload_id, site, operation, module_path, step,"
        " captured_us, arrived_us, receipt) VALUES (?,?,?,?,?,'linear',?,?,?,?,'{}')",
        [
            (
                i + 1,
                str(uuid.UUID(int=rng.getrandbits(128))),
                owner,
                i % WORKLOADS + 1,
                f'{{"module":"blocks.{i % 48}","step":{i % 8}}}',
                f"blocks.{i % 48}",
                i % 8,
                starts[owner] + i,
                starts[owner] + i,
            )
            for i, owner in enumerate(owners)
        ],
    )
    connection.executemany(
        "INSERT INTO capture_output(capture_id, ordinal, name, blob_sha256) VALUES (?,0,'C',?)",
        [(i + 1, f"{i % (2 * WORKLOADS):064x}") for i in range(CAPTURES)],
    )


def _replays(connection: sqlite3.Connection, rng: random.Random, runs: int) -> None:
    captures = connection.execute(
        "SELECT c.id, c.workload_id, w.uuid, w.definition_id, d.name, c.captured_us FROM capture c"
        " JOIN workload w ON w.id = c.workload_id JOIN definition d ON d.id = w.definition_id"
    ).fetchall()
    rows = []
    for number in range(REPLAYS):
        capture = captures[number % len(captures)]
        status = "passed" if rng.random() < 0.97 else "failed"
        run = 2 + len(COMMANDS) * rng.randrange(runs // len(COMMANDS))
        rows.append((run, capture[2], capture[4], capture[0], capture[1], capture[3], status,
                     capture[5] + 1_000_000))  # fmt: skip
    connection.executemany(
        "INSERT INTO replay(run_id, subject, definition, capture_id, workload_id, definition_id,"
        " status, started_us, imported) VALUES (?,?,?,?,?,?,?,?,0)",
        rows,
    )


def _measurements(
    connection: sqlite3.Connection, rng: random.Random, runs: int, samples: int
) -> None:
    count = samples // PER_MEASUREMENT
    groups = [5 + len(COMMANDS) * (i % (runs // len(COMMANDS))) for i in range(count)]
    connection.executemany(
        "INSERT INTO measurement(id, run_id, name, baseline_ms, candidate_ms, ratio, ratio_low,"
        " ratio_high, pairs, verdict) VALUES (?,?,?,1.0,0.97,1.03,1.02,1.04,50,'FAST')",
        [(i + 1, min(run, runs), f"gemm {i // (runs // 5)}") for i, run in enumerate(groups)],
    )
    connection.executemany(
        "INSERT INTO timing_sample(measurement_id, round, position, arm, ms) VALUES (?,?,?,?,?)",
        _samples(rng, count),
    )


def _samples(rng: random.Random, measurements: int) -> Iterator[tuple[int, int, int, str, float]]:
    for measurement in range(1, measurements + 1):
        for number in range(PER_MEASUREMENT):
            round_, position = divmod(number, 4)
            yield measurement, round_, position, "ABBA"[position], 1 + rng.random() / 50


def main() -> None:
    """Build the database that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    options = parser.parse_args()
    began = time.perf_counter()
    build(options.path, options.runs, options.samples)
    size = options.path.stat().st_size / 2**20
    print(f"{options.path}: {size:.0f} MiB in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
