"""What the recorder takes, refuses and keeps of a call."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from kclab.core.digest import tensor_digest, workload_uuid
from kclab.core.errors import DefinitionInvalid
from kclab.db.store import Store
from tests.capture.recording import GEMM, WEIGHT, Session, definition, recording

SCALED = definition(
    {"x": (["M"], "float32"), "scale": (None, "float32")}, {"y": (["M"], "float32")}
)


@pytest.fixture
def session(store: Store) -> Iterator[Session]:
    with recording(store) as active:
        yield active


def test_a_call_is_stored_with_the_inputs_of_before_and_the_outputs_of_after(
    session: Session,
) -> None:
    a = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    pending = session.begin({"A": a, "W": WEIGHT})
    c = a @ WEIGHT.T
    a.zero_()
    session.recorder.finish(pending, {"C": c})
    c.zero_()
    session.drain()
    (stored,) = session.captures()
    assert stored.inputs["A"].tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert stored.inputs["W"].tolist() == WEIGHT.tolist()
    assert stored.outputs["C"].tolist() == [[20.0, 60.0, 100.0]]


def test_equal_inputs_are_one_workload_with_an_occurrence_each(session: Session) -> None:
    a = torch.ones(2, 4)
    for step in range(3):
        session.record({"A": a, "W": WEIGHT}, {"C": a @ WEIGHT.T}, step=step)
    session.drain()
    stored = session.captures()
    assert len({s.workload for s in stored}) == 1
    assert len({s.row["uuid"] for s in stored}) == 3
    assert all(uuid.UUID(s.row["uuid"]).version == 5 for s in stored)


def test_a_workload_is_named_by_its_content_alone(session: Session) -> None:
    session.record({"x": torch.ones(2), "scale": 0.5}, {"y": torch.ones(2)}, SCALED)
    session.drain()
    (stored,) = session.captures()
    digest = tensor_digest("float32", (2,), torch.ones(2).numpy().data)
    content = {"blob": digest, "dtype": "float32", "shape": [2]}
    assert stored.workload == workload_uuid("toy", {"x": content, "scale": {"scalar": 0.5}})


def test_the_receipt_says_where_the_call_came_from(store: Store) -> None:
    facts = {"model": "M", "model_revision": "r", "engine": "E", "server_command": ["serve"]}
    with recording(store, provenance=facts, steps=(0, 2)) as session:
        session.gemm(
            rows=5,
            step=2,
            variant="rows_5",
            module_path="blocks.0.to_q",
            receipt={"prefix_segments": [[0, 4, True]]},
            request={"prompt": "a teapot", "seed": 42},
            request_started_us=1_000_000,
        )
        session.drain()
        (stored,) = session.captures()
    expected = {
        **facts,
        "capture_steps": [0, 2],
        "request_id": "request",
        "request": {"prompt": "a teapot", "seed": 42},
        "started_at": 1.0,
        "step": 2,
        "variant": "rows_5",
        "operation": "op",
        "module_path": "blocks.0.to_q",
        "prefix_segments": [[0, 4, True]],
        "axes": {"M": 5},
        "device": "cpu",
        "definition": GEMM.name,
        "strides": {"A": [4, 1], "W": [4, 1], "C": [3, 1]},
    }
    assert {key: stored.receipt.get(key) for key in expected} == expected
    assert stored.receipt["expected_output"]["type"] == "safetensors"
    assert stored.receipt["process_id"] == stored.row["process_id"]
    assert stored.row["stall_us"] == stored.receipt["stall_us"] > 0


def test_a_receipt_keeps_only_allowed_environment_variables(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    session.gemm()
    session.drain()
    (stored,) = session.captures()
    assert stored.receipt["environment"]["OMP_NUM_THREADS"] == "3"
    assert "secret" not in json.dumps(stored.receipt)
    assert stored.receipt["torch_switches"]["float32_matmul_precision"] == "highest"


def test_a_receipt_holds_anything_an_adapter_says(session: Session) -> None:
    odd = {"dtype": torch.bfloat16, "bad": float("nan"), "set": {1}, "path": uuid.UUID(int=0)}
    session.gemm(receipt=odd, request={"temperature": float("inf")})
    session.drain()
    (stored,) = session.captures()
    assert stored.receipt["dtype"] == "torch.bfloat16"
    assert stored.receipt["bad"] == "nan"
    assert stored.receipt["request"] == {"temperature": "inf"}


def test_a_site_is_the_place_and_not_the_occasion(session: Session) -> None:
    for request in ("first", "second"):
        session.gemm(request_id=request, module_path="to_q", variant="rows_1")
    session.drain()
    sites = {s.row["site"] for s in session.captures()}
    assert len(sites) == 1
    assert '"module_path":"to_q"' in sites.pop()


def test_the_request_is_kept_once_with_its_payload(session: Session) -> None:
    for step in range(2):
        session.gemm(step=step, request={"prompt": "p"}, request_started_us=7)
    session.drain()
    rows = session.active.connection.execute(
        "SELECT request_id, payload, started_us FROM request"
    ).fetchall()
    assert [tuple(row) for row in rows] == [("request", '{"prompt": "p"}', 7)]


BAD_INPUTS = {
    "missing": ({"A": torch.ones(1, 4)}, "input W is missing"),
    "foreign": ({"A": torch.ones(1, 4), "W": WEIGHT, "B": WEIGHT}, "has no input 'B'"),
    "dtype": ({"A": torch.ones(1, 4).half(), "W": WEIGHT}, "must be float32"),
    "rank": ({"A": torch.ones(4), "W": WEIGHT}, "dimensions"),
    "constant": ({"A": torch.ones(1, 5), "W": torch.ones(3, 5)}, "axis 'K' is 4"),
    "scalar for a tensor": ({"A": 1.0, "W": WEIGHT}, "must be a tensor"),
    "sparse": ({"A": torch.ones(1, 4).to_sparse(), "W": WEIGHT}, "not a plain one"),
    "meta": ({"A": torch.ones(1, 4, device="meta"), "W": WEIGHT}, "without memory"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_inputs_that_break_the_definition_are_counted_and_not_written(
    session: Session, case: str
) -> None:
    inputs, reason = BAD_INPUTS[case]
    assert session.begin(inputs) is None
    session.drain()
    assert session.captures() == []
    assert any(reason in outcome for outcome in session.counts())
    assert session.control.claimed() == 0


def test_a_tensor_where_a_python_scalar_is_due_is_refused(session: Session) -> None:
    assert session.begin({"x": torch.ones(2), "scale": torch.tensor(0.5)}, SCALED) is None
    assert any("must stay a Python scalar" in outcome for outcome in session.counts("toy"))


@pytest.mark.parametrize("scalar", [numpy.float32(0.5), numpy.float64(0.5), 0.5])
def test_numpy_scalars_become_python_scalars(session: Session, scalar: Any) -> None:
    session.record({"x": torch.ones(2), "scale": scalar}, {"y": torch.ones(2)}, SCALED)
    session.drain()
    (stored,) = session.captures()
    assert stored.inputs["scale"] == 0.5
    assert type(stored.inputs["scale"]) is float


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({}, "output C is missing"),
        ({"C": torch.ones(1, 3).half()}, "must be float32"),
        ({"C": torch.ones(2, 3)}, "axis 'M' is 1"),
        ({"C": torch.ones(1, 3), "D": torch.ones(1)}, "has no output 'D'"),
    ],
)
def test_outputs_that_break_the_definition_leave_nothing(
    session: Session, outputs: dict[str, Any], reason: str
) -> None:
    session.record({"A": torch.ones(1, 4), "W": WEIGHT}, outputs)
    session.drain()
    assert session.captures() == []
    assert any(reason in outcome for outcome in session.counts())
    session.gemm()
    session.drain()
    assert len(session.captures()) == 1, "the same selection may still be captured"


def test_outputs_are_stored_by_name_in_the_definitions_order(session: Session) -> None:
    two = definition(
        {"x": (["M"], "float32")}, {"state": (["M"], "float32"), "out": (["M"], "float32")}
    )
    session.record(
        {"x": torch.zeros(1)}, {"out": torch.tensor([1.0]), "state": torch.tensor([2.0])}, two
    )
    session.drain()
    (stored,) = session.captures()
    assert {name: value.item() for name, value in stored.outputs.items()} == {
        "state": 2.0,
        "out": 1.0,
    }
    assert list(stored.outputs) == ["state", "out"]
    assert set(stored.receipt["expected_output"]) == {"state", "out"}


def test_the_same_request_step_and_variant_is_captured_once(session: Session) -> None:
    for path in ("blocks.0", "blocks.1"):
        session.gemm(variant="rows_1", module_path=path)
    session.gemm(variant="rows_2", module_path="blocks.0")
    session.drain()
    assert [s.row["module_path"] for s in session.captures()] == ["blocks.0", "blocks.0"]
    assert session.counts()["duplicate"] == 1


def test_per_site_captures_each_module(store: Store) -> None:
    with recording(store, per="site") as session:
        for path in ("blocks.0", "blocks.1", "blocks.1"):
            session.gemm(variant="rows_1", module_path=path)
        session.drain()
        assert [s.row["module_path"] for s in session.captures()] == ["blocks.0", "blocks.1"]


def test_wants_says_why_not(store: Store) -> None:
    with recording(store, steps=(1,), max_per_axes=1, definitions=("dense_gemm_*",)) as session:
        ask = session.recorder.wants
        where = {"request_id": "r", "variant": None, "module_path": None, "axes": {"M": 1}}
        assert not ask("other", step=1, **where)
        assert not ask(GEMM.name, step=0, **where)
        assert ask(GEMM.name, step=1, **where)
        session.gemm(step=1, request_id="r")
        session.gemm(step=1, request_id="s")
        assert not ask(GEMM.name, step=1, **where)
        assert not ask(GEMM.name, step=1, **{**where, "request_id": "t"})
        counts = session.counts()
        assert session.counts("other") == {}
    assert counts["seen"] == 4
    assert counts["step not selected"] == 1
    assert counts["duplicate"] == 1
    assert counts["over --max-per-axes 1"] == 2


def test_an_operator_that_raised_leaves_nothing(session: Session) -> None:
    pending = session.begin({"A": torch.ones(1, 4), "W": WEIGHT})
    session.recorder.abandon(pending, "the operator raised")
    session.drain()
    assert session.captures() == []
    assert session.counts()["the operator raised"] == 1
    assert session.control.reserved() == 0
    assert session.control.claimed() == 0


def test_a_capture_error_is_kept_with_its_traceback_and_not_raised(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.capture.copies.fill", lambda *_: 1 / 0)
    assert session.begin({"A": torch.ones(1, 4), "W": WEIGHT}) is None
    session.drain()
    assert session.counts()["error: ZeroDivisionError: division by zero"] == 1
    row = session.active.connection.execute("SELECT kind, traceback FROM error").fetchone()
    assert row["kind"] == "ZeroDivisionError"
    assert "lambda" in row["traceback"] or "fill" in row["traceback"]


def test_strict_raises_into_the_engine(store: Store) -> None:
    with recording(store, strict=True) as session, pytest.raises(DefinitionInvalid):
        session.begin({"A": torch.ones(4), "W": WEIGHT})


def test_tensors_that_need_gradients_are_taken_as_they_are(session: Session) -> None:
    a = torch.ones(1, 4, requires_grad=True)
    weight = torch.nn.Parameter(WEIGHT.clone())
    with torch.enable_grad():
        session.record({"A": a, "W": weight}, {"C": a @ weight.T})
    session.drain()
    (stored,) = session.captures()
    assert stored.inputs["A"].tolist() == a.tolist()


def test_inference_tensors_are_taken_as_they_are(session: Session) -> None:
    with torch.inference_mode():
        session.gemm()
    session.drain()
    assert len(session.captures()) == 1
