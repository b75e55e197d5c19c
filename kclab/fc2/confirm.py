"""Whether a sweep's winner holds in fresh processes: near-ties flip between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from kclab.core.errors import NothingMatched
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.db.queries.fc2 import run_results
from kclab.db.store import Store
from kclab.fc2.rows import insert


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What fresh processes said about a winner."""

    asked: int
    agreed: int
    said: Sequence[str]
    """Verdict and gain of each."""


def confirm_winner(store: Store, run_uuid: str, config: str, processes: int) -> Confirmation:
    """Measure a config that a run chose in new processes; each answer is a gate row.

    Raises NothingMatched where the run did not measure it.
    """
    with closing(store.read()) as connection:
        rows = run_results(connection, run_uuid)
    winners = [r for r in rows if r["scope"] == "gemm" and r["config"] == config]
    if not winners:
        raise NothingMatched(f"run {run_uuid[:13]} has no result of {config} to confirm.")
    winner = winners[0]
    said = []
    for _ in range(processes):
        answer = _ask(store, winner["workload"], winner["backend"], winner["config"])
        passed = answer.startswith("FAST")
        said.append(answer)
        _keep(store, winner["result_id"], passed, answer)
    agreed = sum(answer.startswith("FAST") for answer in said)
    return Confirmation(processes, agreed, said)


def _ask(store: Store, workload: str, backend: str, config: str) -> str:
    command = [sys.executable, "-m", "kclab", "--db", str(store.database), "fc2", "selected"]
    command += [workload, "--backend", backend, "--candidate", config, "--format", "json"]
    command += ["--workspace", str(64 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode != 0:
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    rows = json.loads(done.stdout)
    row = next(r for r in rows if r["scope"] == "gemm" and r["config"] == config)
    return f"{row['verdict']} {(row['ratio'] - 1) * 100:+.1f} %"


def _keep(store: Store, result_id: int, passed: bool, answer: str) -> None:
    with closing(store.write()) as connection, writing(connection) as tx:
        row = tx.execute(
            "SELECT run_id, boundary_id, config_id, validity_id FROM fc2_result WHERE id = ?",
            (result_id,),
        ).fetchone()
        values = {
            **dict(row),
            "kind": "process",
            "status": "passed" if passed else "failed",
            "detail": json.dumps({"answer": answer}),
            "at_us": now_us(),
        }
        insert(tx, "fc2_gate", values)
