"""LTX-2.5's transformer and MiniMax-H3's MLP, as SGLang has them: captured, replayed, swept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kclab.db.store import Store
from kclab.fc2.problem import Precision
from kclab.replay import Options, Selection, replay

pytestmark = pytest.mark.engines

PROGRAM = Path(__file__).parent / "programs" / "modules.py"
KCLAB = (sys.executable, "-m", "kclab")


def kclab(store: Store, *arguments: str) -> str:
    command = [*KCLAB, "--db", str(store.database), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory, cpu_engine: None):
    def run(kind: str) -> Store:
        store = Store.at(tmp_path_factory.mktemp(kind) / "kclab.db")
        program = ("--define-missing", "--", sys.executable, str(PROGRAM), kind)
        kclab(store, "capture", "run", "--adapter", kind, *program)
        return store

    return run


@pytest.fixture(scope="module")
def ltx(capture) -> Store:
    return capture("ltx")


@pytest.fixture(scope="module")
def h3(capture) -> Store:
    return capture("minimax-h3")


def captures(store: Store, op_type: str) -> set[tuple[str, str]]:
    connection = store.read()
    try:
        rows = connection.execute(
            "SELECT d.name, c.variant FROM capture c JOIN workload w ON w.id = c.workload_id"
            " JOIN definition d ON d.id = w.definition_id WHERE d.op_type = ?",
            (op_type,),
        )
        return {(row[0], row[1]) for row in rows.fetchall()}
    finally:
        connection.close()


def passed(store: Store) -> bool:
    summary = replay(store, Selection(), Options())
    return summary.status == "passed"


VIDEO = ("attn1", "attn2")
AUDIO = ("audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")


def test_all_six_attentions_of_a_block_are_captured(ltx: Store) -> None:
    wanted = {("sdpa_bf16_h2_kv2_d64", name) for name in VIDEO}
    wanted |= {("sdpa_bf16_h2_kv2_d32", name) for name in AUDIO}
    assert captures(ltx, "sdpa") == wanted


def test_each_attentions_gate_is_captured(ltx: Store) -> None:
    wanted = {("head_gate_bf16_h2_d64", name) for name in VIDEO}
    wanted |= {("head_gate_bf16_h2_d32", name) for name in AUDIO}
    assert captures(ltx, "head_gate") == wanted


def test_feed_forwards_are_captured(ltx: Store) -> None:
    names = {name for name, _ in captures(ltx, "dense_gemm")}
    assert {"dense_gemm_bf16_nt_n512_k128", "dense_gemm_bf16_nt_n128_k512"} <= names
    assert {"dense_gemm_bf16_nt_bias_n256_k64", "dense_gemm_bf16_nt_bias_n64_k256"} <= names


def test_everything_of_ltx_replays(ltx: Store) -> None:
    assert passed(ltx)


def test_fc2_and_packed_attention_of_minimax_h3_are_captured(h3: Store) -> None:
    assert captures(h3, "fc2") == {("fc2_bf16_n256_k512", "rows_64")}
    assert captures(h3, "ragged_attention") == {("ragged_attention_bf16_h2_kv2_d128", "tokens_64")}


def test_everything_of_minimax_h3_replays(h3: Store) -> None:
    assert passed(h3)


def test_a_captured_fc2_is_a_boundary_that_a_sweep_takes(h3: Store) -> None:
    table = kclab(h3, "fc2", "sweep", "--backend", "cpu", "--budget", "5s")
    assert "64x256x512" in table and "exact" in table
    connection = h3.read()
    try:
        (row,) = connection.execute("SELECT precision, m, n, k, source FROM fc2_boundary")
    finally:
        connection.close()
    assert tuple(row) == (Precision.BF16.value, 64, 256, 512, "captured")
