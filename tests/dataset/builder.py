"""Small dataset folders, written byte by byte: no torch, no safetensors, none of kclab's writers.

A capture root is what an earlier capture script leaves behind: `workloads/`, `results/` with
receipts and the replay report, and one blob a tensor named by its digest; its definitions lie in
`definitions/` beside it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CODES = {
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "uint16": ("U16", 2),
    "uint32": ("U32", 4),
    "uint64": ("U64", 8),
    "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "float4_e2m1fn_x2": ("F4", 1),
    "complex64": ("C64", 8),
}
VAR = {"type": "var"}
DOUBLE = "import torch\ndef run(x):\n    return x * 2\n"


def safetensors(header: dict[str, Any] | bytes, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file, lying header included where `length` says so."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@dataclass(frozen=True)
class Tensor:
    """A tensor as its bytes."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    def digest(self) -> str:
        head = json.dumps([f"torch.{self.dtype}", list(self.shape)]).encode()
        return hashlib.sha256(head + self.raw).hexdigest()

    def entry(self, begin: int = 0) -> dict[str, Any]:
        shape = list(self.shape)
        if self.dtype == "float4_e2m1fn_x2" and shape:
            shape[-1] *= 2
        offsets = [begin, begin + len(self.raw)]
        return {"dtype": CODES[self.dtype][0], "shape": shape, "data_offsets": offsets}

    def file(self, key: str = "tensor", metadata: dict[str, str] | None = None) -> bytes:
        extra = {"__metadata__": metadata} if metadata else {}
        return safetensors({**extra, key: self.entry()}, self.raw)


def floats(*values: float) -> Tensor:
    """A one-dimensional float32 tensor."""
    return Tensor("float32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def tensor(dtype: str, shape: tuple[int, ...], raw: bytes) -> Tensor:
    """Any tensor from its bytes."""
    return Tensor(dtype, shape, raw)


def definition(
    name: str,
    axes: dict[str, Any],
    inputs: dict[str, tuple[Any, str]],
    outputs: dict[str, tuple[Any, str]],
    reference: str,
    **more: Any,
) -> dict[str, Any]:
    """A definition's JSON body."""

    def spec(specs: dict[str, tuple[Any, str]]) -> dict[str, Any]:
        return {n: {"shape": shape, "dtype": dtype} for n, (shape, dtype) in specs.items()}

    return {
        "name": name,
        "op_type": "toy",
        "axes": axes,
        "inputs": spec(inputs),
        "outputs": spec(outputs),
        "reference": reference,
        **more,
    }


@dataclass
class RootBuilder:
    """A capture root at `folder/root`, its definitions in `folder/definitions`."""

    folder: Path
    defined: set[str] = field(default_factory=set)
    cases: list[dict[str, Any]] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def receipts(self) -> Path:
        return self.root / "results" / "captures.jsonl"

    def rows(self, name: str = "double") -> Path:
        return self.root / "workloads" / "toy" / f"{name}.jsonl"

    def define(self, body: dict[str, Any]) -> None:
        path = self.folder / "definitions" / body["op_type"] / f"{body['name']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body))
        self.defined.add(body["name"])

    def blob(self, name: str, value: Tensor, content: bytes | None = None) -> dict[str, Any]:
        text = f"blob/workloads/{name}/{value.digest()}.safetensors"
        path = self.root / text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.file() if content is None else content)
        return {"type": "safetensors", "path": text, "tensor_key": "tensor"}

    def add(
        self,
        name: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        axes: dict[str, int],
        *,
        receipt: bool = True,
        row: bool = True,
        verdict: str | None = "passed",
        row_extra: dict[str, Any] | None = None,
        **provenance: Any,
    ) -> str:
        """One capture; returns its uuid. Values are Tensors, scalars or ready descriptors."""
        described = {n: self._describe(name, v) for n, v in inputs.items()}
        expected = {n: self._describe(name, v) for n, v in outputs.items()}
        facts = {"request_id": "req0", "step": 0, "operation": "toy", **provenance}
        identity = json.dumps([name, described, facts], sort_keys=True)
        uid = str(uuid.uuid5(uuid.NAMESPACE_URL, identity))
        if row:
            workload = {"uuid": uid, "axes": axes, "inputs": described}
            self.append(
                self.rows(name), {"definition": name, "workload": workload, **(row_extra or {})}
            )
        if receipt:
            output = next(iter(expected.values())) if len(expected) == 1 else expected
            line = {"definition": name, "uuid": uid, "axes": axes, "expected_output": output}
            self.append(self.receipts, {**facts, **line})
            if row and verdict is not None:
                self.cases.append({"definition": name, "uuid": uid, "status": verdict})
        return uid

    def double(self, *values: float, **more: Any) -> str:
        """A capture of `x * 2`."""
        if "double" not in self.defined:
            body = definition(
                "double", {"N": VAR}, {"x": (["N"], "float32")}, {"out": (["N"], "float32")}, DOUBLE
            )
            self.define(body)
        doubled = floats(*[2 * value for value in values])
        return self.add(
            "double", {"x": floats(*values)}, {"out": doubled}, {"N": len(values)}, **more
        )

    def report(self) -> RootBuilder:
        """Write the replay report over every case so far."""
        cases = [{"seconds": 0.25, "max_absolute_errors": [0.0], **case} for case in self.cases]
        tolerances = {"float32": {"rtol": 1e-4, "atol": 2e-5}}
        report = {"torch": "2.13.0", "device": "cpu", "tolerances": tolerances, "cases": cases}
        path = self.root / "results" / "replay.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
        return self

    def append(self, path: Path, row: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")

    def _describe(self, name: str, value: Any) -> dict[str, Any]:
        if isinstance(value, Tensor):
            return self.blob(name, value)
        return value if isinstance(value, dict) else {"type": "scalar", "value": value}
