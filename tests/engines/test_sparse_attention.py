"""DeepSeek-V3.2's sparse attention in SGLang's own layer, back-end and pools."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.db.store import Store
from kclab.replay import Options, Selection, replay

pytestmark = pytest.mark.engines

PROGRAM = Path(__file__).parent / "programs" / "sparse.py"
DEFINITION = "mla_sparse_bf16_h16_ckv512_kpe64_topk2048"


@pytest.fixture(scope="module", params=["fused", "own"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> Store:
    """What a prefill and a decode left, the chosen keys told as slots or as places of their own."""
    store = Store.at(tmp_path_factory.mktemp(request.param) / "kclab.db")
    command = (sys.executable, "-m", "kclab", "--db", str(store.database), "capture", "run")
    program = ("--adapter", "deepseek", "--", sys.executable, str(PROGRAM), request.param)
    done = subprocess.run((*command, *program), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return store


def receipts(store: Store) -> list[dict[str, Any]]:
    with closing(store.read()) as connection:
        rows = connection.execute("SELECT receipt FROM capture ORDER BY id").fetchall()
    return [json.loads(row[0]) for row in rows]


def test_prefill_and_decode_are_captured_with_the_keys_of_both_requests(store: Store) -> None:
    found = [(r["request_id"], r["definition"], r["axes"]) for r in receipts(store)]
    assert found == [
        ("extend", DEFINITION, {"Tq": 7, "Tk": 3200}),
        ("decode", DEFINITION, {"Tq": 2, "Tk": 3209}),
    ]


def test_everything_captured_replays_and_passes(store: Store) -> None:
    assert replay(store, Selection(), Options()).status == "passed"
