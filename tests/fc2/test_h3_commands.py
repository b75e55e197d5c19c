"""capture, block-gate and trajectory from the command line, on the tiny model."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import torch

from tests.conftest import Cli, Output

TRIO = [0, 24, 49]
BF16_PARTIALS = "3:0:0:4:4:0:0:0:0"
"""The CPU backend's split-K whose partial sums are rounded: it really is not exact."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products on a busy machine: threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def fc2(invoke: Cli, tmp_path: Path) -> Cli:
    """`fc2("capture", …)` on a store of its own and the CPU backend."""

    def run(*words: object) -> Output:
        return invoke("--db", tmp_path / "kclab.db", "fc2", *words, "--backend", "cpu")

    return run


def query(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "kclab.db") as connection:
        return connection.execute(sql).fetchall()


def test_tiny_boundaries_of_three_blocks_are_captured(fc2: Cli, tmp_path: Path) -> None:
    done = fc2("capture", "--tiny", "--dtype", "nvfp4", "-f", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["block"] for row in rows] == TRIO
    assert {(row["shape"], row["m_padded"], row["source"]) for row in rows} == {
        ("123x64x128", 128, "h3")
    }
    again = json.loads(fc2("capture", "--tiny", "--dtype", "nvfp4", "-f", "json").out)
    assert [row["workload"] for row in again] == [row["workload"] for row in rows]


def test_a_block_gate_keeps_a_row_a_block_and_prints_them(fc2: Cli, tmp_path: Path) -> None:
    done = fc2("block-gate", "--tiny", "--rounds", 1, "-f", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [(row["block"], row["parity"]) for row in rows] == [(block, "exact") for block in TRIO]
    stored = query(tmp_path, "SELECT kind, status FROM fc2_gate")
    assert stored == [("block", "passed")] * 3


def test_a_block_gates_output_is_the_seeds(fc2: Cli, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    fc2("block-gate", "--tiny", "--rounds", 1, "--output", path)
    document = json.loads(path.read_text())
    assert [row["block"] for row in document["block_gate"]] == TRIO
    for row in document["block_gate"]:
        for name in ("candidate_vs_baseline", "baseline_vs_traversal", "candidate_vs_traversal"):
            assert row[name]["bf16_exact"] is True
        assert row["timing"]["baseline"]["p50_ms"] > 0


def test_a_trajectorys_output_is_the_seeds(fc2: Cli, tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    fc2("trajectory", "--tiny", "--steps", 1, "--output", path)
    found = json.loads(path.read_text())["trajectory"]
    assert found["video_parity"]["bf16_exact"] and found["audio_parity"]["bf16_exact"]
    assert found["steps"] == 1 and "improvement_percent" in found


def test_an_inexact_candidate_fails_the_block_gate_and_keeps_its_rows(
    fc2: Cli, tmp_path: Path
) -> None:
    done = fc2("block-gate", "--tiny", "--rounds", 1, "--candidate", BF16_PARTIALS)
    assert done.code == 1
    assert "not byte-exact in block 0" in done.err
    assert query(tmp_path, "SELECT status FROM fc2_gate") == [("failed",)] * 3
    assert query(tmp_path, "SELECT status, exit_code FROM run") == [("failed", 1)]


def test_a_trajectory_reports_both_times_and_equal_bytes(fc2: Cli, tmp_path: Path) -> None:
    done = fc2("trajectory", "--tiny", "--steps", 2, "-f", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["steps"], found["video_parity"], found["audio_parity"]) == (2, "exact", "exact")
    assert found["baseline_seconds"] > 0 and found["candidate_seconds"] > 0
    assert query(tmp_path, "SELECT kind, status FROM fc2_gate") == [("trajectory", "passed")]


def test_an_inexact_candidate_fails_the_trajectory(fc2: Cli, tmp_path: Path) -> None:
    done = fc2("trajectory", "--tiny", "--steps", 2, "--candidate", BF16_PARTIALS)
    assert done.code == 1
    assert "trajectory is not byte-exact after 2 steps" in done.err
    assert query(tmp_path, "SELECT kind, status FROM fc2_gate") == [("trajectory", "failed")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["capture"], "name one source"),
        (["capture", "--tiny", "--shape", "8x8x8"], "name one source"),
        (["capture", "--tiny", "--canonical"], "two models"),
        (["capture", "--tiny", "--blocks", 0, "--blocks", 24], "blocks 49 are missing"),
        (["capture", "--tiny", "--probe-block", 3], "probe block 3"),
        (["capture", "--tiny", "--size", "depth=3"], "sizes are hidden"),
        (["capture", "--tiny", "--size", "hidden=x"], "NAME=NUMBER"),
        (["capture", "--tiny", "--size", "layers=12"], "block 24: the model has blocks 0 to 11"),
        (["capture", "--tiny", "--sampler-step", 13], "numbered from 1 to 12"),
        (["capture", "--tiny", "--width", 50], "multiples of 32"),
        (["capture", "--tiny", "--attention", "fast"], "diffusers knows"),
        (["block-gate"], "name a model"),
        (["trajectory", "--tiny", "--max-seconds", "soon"], "not a time"),
        (["capture", "--checkpoint", "x", "--size", "hidden=64"], "its own sizes"),
    ],
)
def test_options_without_sense_are_refused(fc2: Cli, words: list[object], message: str) -> None:
    done = fc2(*words)
    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_without_diffusers_there_is_one_sentence(fc2: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "diffusers.models.transformers", None)
    done = fc2("capture", "--tiny")
    assert done.code == 4
    assert "pip install 'kclab[demo]'" in done.err
    assert "Traceback" not in done.err
