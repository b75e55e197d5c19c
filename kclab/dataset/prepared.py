"""A root's cases as database rows, made before the write transaction begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kclab.capture.receipt import site_key
from kclab.core.definition import Definition
from kclab.core.digest import DTYPES, element_count, workload_uuid
from kclab.core.errors import DefinitionInvalid
from kclab.dataset.arrivals import Arrival
from kclab.dataset.cases import Case, FileTensor, InputSource, RandomInput, ScalarInput
from kclab.db.rows import BlobRow, InputValue
from kclab.db.values import to_json
from kclab.db.verdicts import OutputVerdict

Receipt = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedWorkload:
    """A `workload` row and its inputs."""

    uuid: str
    definition: Definition
    axes: str
    inputs: Mapping[str, InputValue]
    extra: str | None
    replaces: str | None = None
    """The uuid of a row that stood for the same content while its bytes were elsewhere."""


@dataclass(frozen=True, slots=True)
class PreparedCapture:
    """A `capture` row with its outputs and, where the root has one, its verdict."""

    uuid: str
    workload: str
    site: str
    receipt: Receipt
    receipt_text: str
    """`receipt` as its column holds it."""
    outputs: Sequence[tuple[str, str]]
    captured_us: int
    verdict: PreparedVerdict | None


@dataclass(frozen=True, slots=True)
class PreparedVerdict:
    """An imported `replay` row."""

    capture: str
    """The receipt's uuid."""
    definition: str
    device: str | None
    seconds: float | None
    at_us: int
    outputs: Sequence[OutputVerdict]


@dataclass(slots=True)
class Prepared:
    """Everything that one transaction is to write."""

    blobs: dict[str, BlobRow] = field(default_factory=dict)
    workloads: dict[str, PreparedWorkload] = field(default_factory=dict)
    captures: dict[str, PreparedCapture] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)
    """Workloads that came without a receipt."""


def check_content(
    case: Case, definition: Definition, tensors: Mapping[str, Arrival], checked: set[Any]
) -> str | None:
    """Why a case's tensors do not fit its definition, None when they do.

    `checked` remembers the signatures that passed: a dataset repeats few.
    """
    facts = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
    signature = (definition.name, facts, tuple(case.axes.items()))
    if signature in checked:
        return None
    for name, dtype, _ in facts:
        wanted = definition.spec(name).dtype
        if dtype != wanted:
            return f"{name} is {dtype}, {definition.name} takes {wanted}"
    try:
        definition.bind_axes({name: shape for name, _, shape in facts}, known=case.axes)
    except DefinitionInvalid as error:
        return str(error)
    checked.add(signature)
    return None


def input_value(source: InputSource, tensor: Arrival | None) -> InputValue:
    """The `workload_input` row of one source."""
    if tensor is not None:
        return InputValue(blob=tensor.sha256)
    if isinstance(source, ScalarInput):
        return InputValue(scalar=json.dumps(source.value))
    return InputValue(random=json.dumps(_random(source)))


def _random(source: InputSource) -> dict[str, Any]:
    return dict(source.descriptor) if isinstance(source, RandomInput) else {"type": "random"}


def content_uuid(case: Case, tensors: Mapping[str, Arrival]) -> str:
    """The workload's uuid in every store; a random input counts by the uuid its dataset gave."""
    content: dict[str, Any] = {}
    for name, source in case.inputs.items():
        tensor = tensors.get(name)
        if tensor is not None:
            shape = list(tensor.shape)
            content[name] = {"blob": tensor.sha256, "dtype": tensor.dtype, "shape": shape}
        elif isinstance(source, ScalarInput):
            content[name] = {"scalar": source.value}
        else:
            content[name] = {"random": _random(source)}
    extra = {"dataset_uuid": case.uuid} if case.random_inputs else None
    return workload_uuid(case.definition, content, extra)


def dataset_extra(case: Case, absent: Sequence[str], files: Mapping[str, Sequence[Any]]) -> str:
    """The `extra` of a workload without a receipt: what its dataset said, for the way back.

    `files` maps each path to its `Tree.facts`: an unchanged file is not read again.
    """
    paths = {n: [s.text, s.key] for n, s in case.inputs.items() if isinstance(s, FileTensor)}
    extra: dict[str, Any] = {"uuid": case.uuid, "paths": paths, "files": dict(files)}
    if absent:
        extra["absent"] = list(absent)
    if case.extra:
        extra["row"] = case.extra
    return to_json(extra)


def prepare_capture(
    case: Case, workload: str, tensors: Mapping[str, Arrival], fallback_us: int
) -> PreparedCapture:
    """The rows of a case's receipt; `fallback_us` is its time where it does not tell its own."""
    receipt = dict(case.receipt or {})
    receipt.pop("expected_output", None)
    outputs = {name: tensors[name] for name in case.outputs or {}}
    verdict = None
    if case.verdict is not None:
        receipt["validation"] = case.verdict
        verdict = prepare_verdict(case, tensors, fallback_us)
    elif outputs:
        receipt["unvalidated"] = True
    return PreparedCapture(
        uuid=case.capture_uuid,
        workload=workload,
        site=site_key(
            case.definition,
            module_path=receipt.get("module_path"),
            operation=str(receipt.get("operation", "")),
            step=_whole(receipt.get("step")) or 0,
            variant=receipt.get("variant"),
            axes=case.axes,
            rank=_whole(receipt.get("rank")),
        ),
        receipt=receipt,
        receipt_text=to_json(receipt),
        outputs=[(name, tensor.sha256) for name, tensor in outputs.items()],
        captured_us=captured_us(receipt, fallback_us),
        verdict=verdict,
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def captured_us(receipt: Receipt, fallback_us: int) -> int:
    """When a capture was made: kclab's own microseconds, else its request's start in seconds."""
    exact = receipt.get("captured_us")
    if type(exact) is int:
        return exact
    started = receipt.get("started_at")
    if isinstance(started, int | float) and 0 < started < 1e11:
        return int(started * 1e6)
    return fallback_us


def prepare_verdict(case: Case, tensors: Mapping[str, Arrival], at_us: int) -> PreparedVerdict:
    """The verdict that came with a case, as the rows of an imported replay."""
    verdict = case.verdict or {}
    outputs = {name: tensors[name] for name in case.outputs or {}}
    seconds, device = verdict.get("seconds"), verdict.get("device")
    return PreparedVerdict(
        capture=case.capture_uuid,
        definition=case.definition,
        device=device if isinstance(device, str) else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        at_us=at_us,
        outputs=[
            _output_verdict(name, tensor, verdict, _error_of(name, case, verdict))
            for name, tensor in outputs.items()
        ],
    )


def _error_of(name: str, case: Case, verdict: Mapping[str, Any]) -> float | None:
    """The report's largest error of an output; the report lists them in the receipt's order."""
    expected = (case.receipt or {}).get("expected_output")
    named = isinstance(expected, Mapping) and not isinstance(expected.get("type"), str)
    names = list(expected) if named and isinstance(expected, Mapping) else list(case.outputs or {})
    errors = verdict.get("max_absolute_errors")
    if not isinstance(errors, list) or len(errors) != len(names):
        return None
    error = errors[names.index(name)]
    return float(error) if isinstance(error, int | float) else None


def _output_verdict(
    name: str, tensor: Arrival, verdict: Mapping[str, Any], error: float | None
) -> OutputVerdict:
    floating = DTYPES[tensor.dtype].code[0] in "FBC" and tensor.dtype != "bool"
    rtol, atol = _bounds(tensor.dtype, verdict.get("tolerances"))
    return OutputVerdict(
        name=name,
        dtype=tensor.dtype,
        passed=True,
        policy="allclose" if floating else "exact",
        elements=element_count(tensor.shape),
        mismatched=0,
        rtol=rtol if floating else None,
        atol=atol if floating else None,
        max_abs=error,
    )


def _bounds(dtype: str, tolerances: Any) -> tuple[float | None, float | None]:
    entry = tolerances.get(dtype) if isinstance(tolerances, Mapping) else None
    if not isinstance(entry, Mapping):
        return None, None
    rtol, atol = entry.get("rtol"), entry.get("atol")
    if isinstance(rtol, int | float) and isinstance(atol, int | float):
        return float(rtol), float(atol)
    return None, None
