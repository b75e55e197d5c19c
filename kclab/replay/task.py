"""What a worker is told and what it answers: small JSON messages of paths, digests and verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kclab.db.verdicts import OracleVerdict, OutputVerdict


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a safetensors file."""

    path: str
    key: str
    sha256: str | None
    """The content digest that the file must have; None where nothing says."""


@dataclass(frozen=True, slots=True)
class Task:
    """One workload to run and judge."""

    id: int
    definition: str
    """sha256 of the definition; its body lies in the pool's folder."""
    inputs: Mapping[str, StoredTensor | int | float | bool]
    outputs: Mapping[str, StoredTensor]
    """What the engine computed."""
    oracle: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A worker's verdict on one task, or why there is none."""

    id: int
    status: str
    """`passed`, `failed` or `error`."""
    seconds: float
    """Loading, running and comparing."""
    started_us: int = 0
    reason: str | None = None
    lacking: bool = False
    """The machine lacks something (bytes, memory), the workload is not to blame."""
    warning: str | None = None
    traceback: str | None = None
    device: str | None = None
    outputs: Sequence[OutputVerdict] = ()
    oracle: Sequence[OracleVerdict] = field(default=())


def encode_task(task: Task) -> bytes:
    """One line of JSON."""
    message = {
        "id": task.id,
        "definition": task.definition,
        "inputs": {name: _source(value) for name, value in task.inputs.items()},
        "outputs": {name: _source(value) for name, value in task.outputs.items()},
        "oracle": task.oracle,
    }
    return json.dumps(message).encode() + b"\n"


def decode_task(line: bytes) -> Task:
    """The inverse of `encode_task`."""
    message = json.loads(line)
    return Task(
        message["id"],
        message["definition"],
        {name: _read(value) for name, value in message["inputs"].items()},
        {name: StoredTensor(*value) for name, value in message["outputs"].items()},
        message["oracle"],
    )


def _source(value: StoredTensor | int | float | bool) -> Any:
    return [value.path, value.key, value.sha256] if isinstance(value, StoredTensor) else value


def _read(value: Any) -> StoredTensor | int | float | bool:
    if isinstance(value, list):
        return StoredTensor(*value)
    scalar: int | float | bool = value
    return scalar


def encode_outcome(outcome: Outcome, *, retired: bool) -> bytes:
    """One line of JSON; `retired` says that the worker takes no further task."""
    message = {**_shallow(outcome), "retired": retired}
    message["outputs"] = [_shallow(output) for output in outcome.outputs]
    message["oracle"] = [_shallow(oracle) for oracle in outcome.oracle]
    return json.dumps(message).encode() + b"\n"


def decode_outcome(message: Mapping[str, Any]) -> Outcome:
    """The outcome in a parsed line, `retired` taken off."""
    parts = dict(message)
    parts["outputs"] = tuple(OutputVerdict(**output) for output in message["outputs"])
    parts["oracle"] = tuple(OracleVerdict(**oracle) for oracle in message["oracle"])
    return Outcome(**parts)


def with_output(outcome: Outcome, printed: str) -> Outcome:
    """The outcome with what its reference printed, where it did not pass."""
    if not printed or outcome.status == "passed":
        return outcome
    trace = f"{outcome.traceback or ''}\n--- what the reference printed last ---\n{printed}\n"
    return replace(outcome, traceback=trace.lstrip("\n"))


def _shallow(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}
