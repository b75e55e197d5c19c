"""Small definitions, stores and capture roots for replay's tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from kclab.blob.safetensors_file import encode_header
from kclab.blob.tensors import to_bytes
from kclab.core.definition import Definition
from kclab.core.digest import tensor_digest, workload_uuid
from kclab.core.trust import trust
from kclab.db.connection import writing
from kclab.db.rows import (
    BlobRow,
    CaptureRow,
    InputValue,
    add_blobs,
    add_capture,
    add_definition,
    add_workload,
)
from kclab.db.runs import run
from kclab.db.store import Store

DOUBLE = "import torch\ndef run(x):\n    return x * 2\n"


def body(
    name: str = "double",
    reference: str = DOUBLE,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("out",),
    dtype: str = "float32",
    shape: Sequence[str] = ("N",),
    **extra: Any,
) -> dict[str, Any]:
    """A definition's JSON whose tensors all have one shape and dtype."""
    spec = {"shape": list(shape), "dtype": dtype}
    return {
        "name": name,
        "op_type": "toy",
        "axes": {axis: {"type": "var"} for axis in shape},
        "inputs": dict.fromkeys(inputs, spec),
        "outputs": dict.fromkeys(outputs, spec),
        "reference": reference,
        **extra,
    }


def define(**parts: Any) -> Definition:
    """A definition whose reference is trusted on this (test's) machine."""
    definition = Definition.from_foreign(body(**parts))
    trust(definition.reference_sha256)
    return definition


@dataclass(slots=True)
class StoreBuilder:
    """Puts captures into a store, one capture run for all."""

    store: Store
    captures: list[str] = field(default_factory=list)

    def add(
        self,
        definition: Definition,
        inputs: Mapping[str, Tensor | float],
        outputs: Mapping[str, Tensor] | None,
        *,
        captured_us: int = 1_000_000,
        random: Sequence[str] = (),
    ) -> str:
        """Add one workload and, for `outputs`, its capture; returns the workload's uuid."""
        with run(self.store, "capture", {}) as active, writing(active.connection) as connection:
            definition_id = add_definition(connection, definition.body)
            values = {
                name: InputValue(blob=self._blob(connection, value))
                if isinstance(value, Tensor)
                else InputValue(scalar=json.dumps(value))
                for name, value in inputs.items()
            }
            values |= {name: InputValue(random='{"type": "random"}') for name in random}
            uuid = workload_uuid(
                definition.name, {n: {"blob": v.blob, "s": v.scalar} for n, v in values.items()}
            )
            workload_id, _ = add_workload(connection, uuid, definition_id, {}, values)
            if outputs is not None:
                made = [(n, self._blob(connection, t)) for n, t in outputs.items()]
                number = len(self.captures)
                self.captures.append(f"{number:08x}-0000-0000-0000-000000000000")
                receipt = CaptureRow(self.captures[-1], "toy", "{}", captured_us, {}, made)
                add_capture(connection, active.id, workload_id, receipt)
        return uuid

    def _blob(self, connection: Any, tensor: Tensor) -> str:
        stored = to_bytes(tensor)
        batch = self.store.blobs.batch()
        sha256 = batch.add(stored.dtype, stored.shape, stored.data)
        nbytes = memoryview(stored.data).nbytes
        add_blobs(connection, [BlobRow(sha256, stored.dtype, stored.shape, nbytes)])
        return sha256


@dataclass(slots=True)
class RootBuilder:
    """Writes a capture root: definitions beside it, rows, receipts and one-tensor blobs."""

    folder: Path
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    count: int = 0

    @property
    def root(self) -> Path:
        """The capture root itself."""
        return self.folder / "root"

    def define(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Put a definition beside the root."""
        path = self.folder / "definitions" / "toy" / f"{definition['name']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(definition))
        self.bodies[definition["name"]] = definition
        return definition

    def blob(self, tensor: Tensor, content: bytes | None = None) -> dict[str, Any]:
        """A descriptor of a stored tensor; `content` replaces the file's bytes."""
        stored = to_bytes(tensor)
        data = bytes(stored.data)
        name = tensor_digest(stored.dtype, stored.shape, data)
        path = self.root / "blob" / "workloads" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = encode_header(stored.dtype, stored.shape, len(data))
        path.write_bytes(header + data if content is None else content)
        relative = path.relative_to(self.root).as_posix()
        return {"type": "safetensors", "path": relative, "tensor_key": "tensor"}

    def add(
        self,
        name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        *,
        row: bool = True,
        receipt: bool = True,
    ) -> str:
        """One row and its receipt; values are tensors or ready descriptors."""
        self.count += 1
        uuid = f"{self.count:08d}-1111-5111-8111-111111111111"
        sources = {key: self._descriptor(value) for key, value in inputs.items()}
        made = {key: self._descriptor(value) for key, value in outputs.items()}
        workload = {"uuid": uuid, "axes": {}, "inputs": sources}
        if row:
            self.append(f"workloads/toy/{name}.jsonl", {"definition": name, "workload": workload})
        if receipt:
            expected = next(iter(made.values())) if len(made) == 1 else made
            row_text = {"uuid": uuid, "definition": name, "step": 0, "request_id": "r",
                        "operation": "toy", "axes": {}, "expected_output": expected}  # fmt: skip
            self.append("results/captures.jsonl", row_text)
        return uuid

    def _descriptor(self, value: Any) -> Any:
        return self.blob(value) if isinstance(value, Tensor) else value

    def append(self, relative: str, row: Any) -> None:
        """Add a line to a file of the root; keys are sorted, as old receipts have them."""
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, sort_keys=True) + "\n")
