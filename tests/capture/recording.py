"""A real recorder on a real store, and what it stored, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kclab.blob.tensors import to_tensor
from kclab.capture.call import Call, Pending
from kclab.capture.control import ControlFolder, process_key
from kclab.capture.plan import CapturePlan
from kclab.capture.recorder import Recorder
from kclab.core.definition import Definition
from kclab.core.families import FAMILIES
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store

GEMM = FAMILIES["dense_gemm"].make(dtype="fp32", n=3, k=4)
WEIGHT = torch.arange(12.0).reshape(3, 4)


def definition(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Definition:
    """A definition with these specs, `{"x": (["M"], "float32")}`; a None shape is a scalar."""
    axes = {a for shape, _ in (*inputs.values(), *outputs.values()) for a in shape or ()}
    return Definition.from_body(
        {
            "name": "toy",
            "op_type": "toy",
            "axes": {axis: {"type": "var"} for axis in sorted(axes)},
            "inputs": {n: {"shape": s, "dtype": d} for n, (s, d) in inputs.items()},
            "outputs": {n: {"shape": s, "dtype": d} for n, (s, d) in outputs.items()},
            "reference": f"def run({', '.join(inputs)}):\n    return x\n",
        }
    )


@dataclass
class Stored:
    """One capture as the store holds it."""

    row: dict[str, Any]
    receipt: dict[str, Any]
    workload: str
    inputs: dict[str, Any]
    outputs: dict[str, Tensor]


@dataclass
class Session:
    """A recorder within a run."""

    store: Store
    active: ActiveRun
    control: ControlFolder
    plan: CapturePlan
    recorder: Recorder

    def another(self, **choices: Any) -> Recorder:
        """A second recorder of the same run, as another process would have."""
        return Recorder(replace(self.plan, **choices))

    def begin(self, inputs: Mapping[str, Any], what: Definition = GEMM, **call: Any) -> Any:
        """Begin a call; its `step` makes it a new selection."""
        call = {"operation": "op", "request_id": "request", "step": 0, **call}
        return self.recorder.begin(Call(what, inputs, **call))

    def record(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        what: Definition = GEMM,
        **call: Any,
    ) -> Pending | None:
        """A whole call."""
        pending: Pending | None = self.begin(inputs, what, **call)
        if pending is not None:
            self.recorder.finish(pending, outputs)
        return pending

    def gemm(self, rows: int = 1, **call: Any) -> Pending | None:
        """A whole GEMM call of random activations."""
        a = torch.randn(rows, 4)
        return self.record({"A": a, "W": WEIGHT}, {"C": a @ WEIGHT.T}, **call)

    def drain(self) -> None:
        """Everything is stored afterwards."""
        assert self.recorder.drain(30)

    def counts(self, name: str = GEMM.name) -> dict[str, int]:
        """What was counted for a definition."""
        return self.recorder._coverage.snapshot().get(name, {})

    def captures(self) -> list[Stored]:
        """The store's captures, in the order in which they were taken."""
        return list(stored_captures(self.store))

    def process(self) -> str:
        """This process's key."""
        return process_key()


def stored_captures(store: Store) -> Iterator[Stored]:
    """Every capture with its tensors."""
    connection = store.read()
    try:
        for row in connection.execute(
            "SELECT c.*, w.uuid AS workload FROM capture c"
            " JOIN workload w ON w.id = c.workload_id ORDER BY c.captured_us, c.id"
        ).fetchall():
            inputs = {
                name: json.loads(scalar) if blob is None else to_tensor(store.blobs.read(blob))
                for name, blob, scalar in connection.execute(
                    "SELECT name, blob_sha256, scalar FROM workload_input WHERE workload_id = ?",
                    (row["workload_id"],),
                )
            }
            outputs = {
                name: to_tensor(store.blobs.read(blob))
                for name, blob in connection.execute(
                    "SELECT name, blob_sha256 FROM capture_output WHERE capture_id = ?"
                    " ORDER BY ordinal",
                    (row["id"],),
                )
            }
            facts = dict(row)
            receipt = json.loads(facts.pop("receipt"))
            yield Stored(facts, receipt, facts.pop("workload"), inputs, outputs)
    finally:
        connection.close()


@contextmanager
def recording(store: Store, **choices: Any) -> Iterator[Session]:
    """A run with a recorder; `choices` go into its plan."""
    with run(store, "capture", {}) as active:
        control = ControlFolder.of(store.database, active.uuid)
        control.create()
        plan = CapturePlan(store.database, active.id, active.uuid, control.path, **choices)
        session = Session(store, active, control, plan, Recorder(plan))
        try:
            yield session
        finally:
            session.recorder.close(30)
