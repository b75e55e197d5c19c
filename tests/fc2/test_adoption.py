"""FC2 calls that an engine's capture stored become boundaries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kclab.core.families import FAMILIES
from kclab.db.store import Store
from kclab.fc2.adoption import adopt_captured
from kclab.fc2.boundary import find_boundary, load_boundary
from kclab.fc2.operands import synthetic
from kclab.fc2.problem import Precision, Problem
from tests.capture.recording import recording

N, K, ROWS = 32, 96, 21


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4])
def test_a_captured_call_is_a_boundary_once(tmp_path: Path, precision: Precision) -> None:
    store = Store.at(tmp_path / "kclab.db")
    problem = Problem(precision, ROWS, N, K)
    operands = synthetic(problem, 3, "cpu")
    inputs = dict(operands.tensors())
    if precision is Precision.NVFP4:
        inputs["rows"] = ROWS
    with recording(store) as session:
        output = torch.zeros(problem.m_padded, N, dtype=torch.bfloat16)
        definition = FAMILIES[f"fc2_{precision.family}"].make(n=N, k=K)
        session.record(inputs, {"C": output}, definition, module_path="blocks.24.mlp")
        session.drain()
        connection = session.active.connection
        assert (adopt_captured(connection), adopt_captured(connection)) == (1, 0)
        row = find_boundary(connection, "last")
        assert (row.problem, row.block, row.source) == (problem, 24, "captured")
        loaded = load_boundary(store, connection, row, "cpu").operands.tensors()
    assert {name: t.tolist() for name, t in loaded.items() if t.dtype != torch.float8_e4m3fn} == {
        name: t.tolist() for name, t in operands.tensors().items() if t.dtype != torch.float8_e4m3fn
    }


def test_other_captures_stay_what_they_are(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "kclab.db")
    with recording(store) as session:
        session.gemm()
        session.drain()
        assert adopt_captured(session.active.connection) == 0
