"""The race against the exhaustive pass, over the fakes: what the benchmark says holds there."""

from __future__ import annotations

import json

import pytest

from benchmarks.fc2_exhaustive import compare
from kclab.fc2.backends.cublaslt import CublasLt
from kclab.fc2.bench import Bench
from kclab.fc2.boundary import synthetic_boundary
from kclab.fc2.problem import Precision, Problem


def test_the_race_finds_what_an_exhaustive_pass_finds(
    cublaslt: CublasLt, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = Problem(Precision.BF16, 10, 32, 96)
    operands = synthetic_boundary(problem, 1, "cpu").operands
    report = compare(Bench(cublaslt, problem, operands, 64 << 20), 30, 120)
    assert report["complete"] and report["finalists"]["near"]
    race, whole = report["race"], report["exhaustive"]
    assert race["config"] == whole["config"] == "66:23:35:2:2:0:0:0:4"
    assert whole["configs"] == whole["valid"] + whole["folded"] + whole["refused"]
    assert whole["timed"] == whole["valid"] and whole["samples"] >= whole["timed"]
    assert json.loads(json.dumps(report)), "plain numbers"
    said = capsys.readouterr().err
    assert "exhaustive pass complete" in said and "66:23:35:2:2:0:0:0:4" in said
