"""Stored winners take the place of torch's and comfy-kitchen's calls, or the block is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch

from kclab.core.errors import EnvironmentLacking, NothingMatched
from kclab.db.store import Store
from kclab.fc2 import apply
from kclab.fc2.operands import Operands, exact_rows, synthetic
from kclab.fc2.problem import Precision, Problem
from tests.conftest import Cli


def sweep(invoke: Cli, store: Store, *more: str) -> None:
    ended = invoke("--db", store.database, "fc2", "sweep", "--shape", "16x32x96", "--backend",
                   "cublaslt", "--until", "heuristics", *more)  # fmt: skip
    assert ended.code == 0, ended.err


@pytest.fixture
def swept(invoke: Cli, store: Store, fake_environment: dict[str, str]) -> Callable[..., Store]:
    def make(*more: str) -> Store:
        sweep(invoke, store, *more)
        return store

    return make


def bf16() -> tuple[Problem, Operands, torch.Tensor]:
    problem = Problem(Precision.BF16, 16, 32, 96)
    operands = synthetic(problem, 9, "cpu")
    return problem, operands, exact_rows(problem, operands, torch.arange(16))


def test_linear_runs_the_winner(swept: Callable[..., Store]) -> None:
    store = swept()
    _, operands, exact = bf16()
    with apply(store.database, ungated=True) as applied:
        found = torch.nn.functional.linear(operands.activation.reshape(2, 8, 96), operands.weight)
        other = torch.nn.functional.linear(torch.ones(3, 4), torch.ones(5, 4))
    assert torch.equal(found.reshape(16, 32), exact) and found.shape == (2, 8, 32)
    assert applied.calls == {"replaced": 1} and other.shape == (3, 5)


def test_results_of_two_calls_do_not_share_memory(swept: Callable[..., Store]) -> None:
    store = swept()
    _, operands, exact = bf16()
    with apply(store.database, ungated=True):
        first = torch.nn.functional.linear(operands.activation, operands.weight)
        torch.nn.functional.linear(operands.activation * 2, operands.weight)
    assert torch.equal(first, exact)


def test_unknown_shape_passes_through(swept: Callable[..., Store]) -> None:
    store = swept()
    with apply(store.database, ungated=True) as applied:
        torch.nn.functional.linear(torch.ones(4, 96).bfloat16(), torch.ones(32, 96).bfloat16())
    assert applied.calls == {"passed through": 1}


def test_scaled_mm_runs_the_winner_of_its_accumulation(swept: Callable[..., Store]) -> None:
    store = swept("--dtype", "fp8_e4m3", "--fast-accumulation")
    problem = Problem(Precision.FP8, 16, 32, 96, fast_accumulation=True)
    o = synthetic(problem, 3, "cpu")
    assert o.activation_scale is not None and o.weight_scale is not None
    with apply(store.database, ungated=True) as applied:
        found = torch._scaled_mm(
            o.activation,
            o.weight.t(),
            o.activation_scale,
            o.weight_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    assert applied.calls["replaced"] == 1
    assert torch.equal(found, exact_rows(problem, o, torch.arange(16)))


def test_comfy_kitchen_runs_the_winner_and_is_put_back(
    swept: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    comfy = pytest.importorskip("comfy_kitchen")
    monkeypatch.setenv("KCLAB_FAKE_CAPABILITY", "10.0")
    store = swept("--dtype", "nvfp4")
    problem = Problem(Precision.NVFP4, 16, 32, 96)
    o = synthetic(problem, 3, "cpu")
    original = comfy.scaled_mm_nvfp4
    with apply(store.database, ungated=True) as applied:
        found = comfy.scaled_mm_nvfp4(
            o.activation,
            o.weight,
            o.activation_tensor_scale,
            o.weight_tensor_scale,
            o.activation_scale,
            o.weight_scale,
        )
    assert applied.calls["replaced"] == 1 and comfy.scaled_mm_nvfp4 is original
    assert torch.equal(found, exact_rows(problem, o, torch.arange(16)))


def test_another_key_is_refused_by_name(swept: Callable[..., Store]) -> None:
    store = swept()
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("UPDATE fc2_validity SET facts = json_set(facts, '$.cublaslt', '1')")
    with pytest.raises(EnvironmentLacking, match="cublaslt: 130100 here, 1 stored"):
        apply(store.database, ungated=True).__enter__()


def test_ungated_winners_need_a_word(swept: Callable[..., Store]) -> None:
    store = swept()
    with pytest.raises(NothingMatched, match="passed no gate"):
        apply(store.database).__enter__()


def test_gated_winner_is_taken(swept: Callable[..., Store]) -> None:
    store = swept()
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute(
            "INSERT INTO fc2_gate(run_id, boundary_id, config_id, validity_id, kind, status, at_us)"
            " SELECT run_id, boundary_id, config_id, validity_id, 'block', 'passed', 0"
            " FROM fc2_result WHERE verdict = 'FAST'"
        )
    _, operands, exact = bf16()
    with apply(store.database) as applied:
        found: Any = torch.nn.functional.linear(operands.activation, operands.weight)
    assert applied.calls["replaced"] == 1 and torch.equal(found, exact)
