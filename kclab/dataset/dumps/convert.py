"""A dump as a capture root: definitions, workloads, receipts and one file a tensor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from torch import Tensor

from kclab.blob.safetensors_file import TENSOR_KEY, encode_header
from kclab.blob.tensors import to_bytes
from kclab.core.definition import Definition
from kclab.core.definition_files import definition_path, definition_text
from kclab.core.digest import canonical_json, tensor_digest
from kclab.core.errors import DefinitionInvalid, NothingMatched
from kclab.dataset.dumps.call import DumpedCall, Skipped
from kclab.dataset.dumps.flashinfer import read_calls
from kclab.dataset.dumps.kinds import DumpKind
from kclab.dataset.dumps.sglang import read_dumper, read_passes, require_checkpoint

SHOWN = 20
"""Reasons for leaving calls out that are told apart."""


def convert_dump(kind: DumpKind, path: Path, model: Path | None, target: Path) -> list[str]:
    """Write the dump at `path` as a capture root into the empty folder `target`.

    `model` is the folder of the checkpoint, whose weights SGLang's dumps lack. Returns what was
    left out, a sentence a reason. Raises BadUsage without a needed model, DatasetRefused for a file
    that is not plain tensors, NothingMatched where no call could be read.
    """
    root = _RootWriter(path, target)
    skipped: Counter[str] = Counter()
    for found in _calls(kind, path, model):
        if isinstance(found, Skipped):
            skipped[str(found)] += 1
        else:
            root.add(found, skipped)
    notes = [f"{reason} ({count} times)" for reason, count in skipped.most_common(SHOWN)]
    if not root.written:
        why = f" Left out: {'; '.join(notes)}." if notes else ""
        raise NothingMatched(f"{path}: a {kind} without a call that a family describes.{why}")
    return notes


def _calls(kind: DumpKind, path: Path, model: Path | None) -> Iterator[DumpedCall | Skipped]:
    if kind is DumpKind.FLASHINFER:
        return read_calls(path)
    checkpoint = require_checkpoint(path, model)
    read = read_dumper if kind is DumpKind.SGLANG_DUMPER else read_passes
    return read(path, checkpoint)


class _RootWriter:
    def __init__(self, source: Path, target: Path):
        self._source, self._target = source, target
        self.written = 0

    def add(self, call: DumpedCall, skipped: Counter[str]) -> None:
        definition = call.definition
        try:
            axes = definition.check_inputs(_facts(call.inputs))
            definition.check_outputs(_facts(call.outputs), axes)
        except DefinitionInvalid as error:
            skipped[str(error)] += 1
            return
        inputs = {n: self._described(definition, call.inputs[n]) for n in definition.inputs}
        outputs = {n: self._described(definition, call.outputs[n]) for n in definition.outputs}
        facts = {
            "request_id": self._source.resolve().name,
            "step": call.step,
            "operation": call.operation,
            **{name: value for name, value in call.facts.items() if value is not None},
        }
        uuid = str(uuid5(NAMESPACE_URL, canonical_json([definition.name, inputs, facts])))
        self._define(definition)
        workload = {"uuid": uuid, "axes": axes, "inputs": inputs}
        rows = self._target / "workloads" / definition.op_type / f"{definition.name}.jsonl"
        _append(rows, {"definition": definition.name, "workload": workload})
        expected = next(iter(outputs.values())) if len(outputs) == 1 else outputs
        receipt = {"definition": definition.name, "uuid": uuid, "axes": axes}
        _append(
            self._target / "results" / "captures.jsonl",
            {**facts, **receipt, "expected_output": expected},
        )
        self.written += 1

    def _define(self, definition: Definition) -> None:
        file = definition_path(self._target / "definitions", definition)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(definition_text(definition), encoding="utf-8")

    def _described(self, definition: Definition, value: Any) -> dict[str, Any]:
        if not isinstance(value, Tensor):
            return {"type": "scalar", "value": value}
        plain = to_bytes(value.detach().contiguous())
        digest = tensor_digest(plain.dtype, plain.shape, plain.data)
        text = f"blob/workloads/{definition.name}/{digest}.safetensors"
        file = self._target / text
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            data = memoryview(plain.data).cast("B")
            header = encode_header(plain.dtype, plain.shape, data.nbytes)
            file.write_bytes(header + data)
        return {"type": "safetensors", "path": text, "tensor_key": TENSOR_KEY}


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: (str(v.dtype), tuple(v.shape)) if isinstance(v, Tensor) else v
        for name, v in values.items()
    }


def _append(file: Path, row: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row, sort_keys=True) + "\n")
