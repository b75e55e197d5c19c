"""From a finished call and its digests to the rows that describe it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from kclab.capture.call import Call
from kclab.capture.entries import CaptureEntry
from kclab.capture.plan import CapturePlan
from kclab.capture.receipt import (
    capture_uuid,
    plain_json,
    process_rank,
    scalar_descriptor,
    site_key,
    tensor_descriptor,
)
from kclab.capture.snapshot import Snapshot
from kclab.capture.switches import allowed_variables, torch_switches
from kclab.capture.writer import Record
from kclab.core.digest import canonical_json, workload_uuid
from kclab.core.families import family_of
from kclab.db.rows import BlobRow, CaptureRow, InputValue


def describe(
    plan: CapturePlan, process: str, record: Record, digests: Mapping[str, str]
) -> CaptureEntry:
    """The rows of a capture; `digests` maps its tensors' names to their blobs."""
    definition = record.pending.call.definition
    inputs = record.pending.inputs
    return CaptureEntry(
        body=definition.body,
        family=family_of(definition.name),
        blobs=_blobs(inputs, digests) + _blobs(record.outputs, digests),
        workload=workload_uuid(definition.name, _content(inputs, digests)),
        axes=_variable_axes(record),
        inputs={
            name: InputValue(blob=digests[name])
            if isinstance(value, Snapshot)
            else InputValue(scalar=canonical_json(value))
            for name, value in inputs.items()
        },
        capture=_capture_row(plan, process, record, digests),
        request=plain_json(record.pending.call.request),
        request_started_us=_request_started(record),
    )


def _blobs(values: Mapping[str, Any], digests: Mapping[str, str]) -> tuple[BlobRow, ...]:
    return tuple(
        BlobRow(digests[name], value.dtype, value.shape, value.nbytes)
        for name, value in values.items()
        if isinstance(value, Snapshot)
    )


def _content(values: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {
        name: {"blob": digests[name], "dtype": value.dtype, "shape": list(value.shape)}
        if isinstance(value, Snapshot)
        else {"scalar": value}
        for name, value in values.items()
    }


def _variable_axes(record: Record) -> dict[str, int]:
    axes = record.pending.axes
    return {a: axes[a] for a in record.pending.call.definition.var_axes if a in axes}


def _request_started(record: Record) -> int:
    started = record.pending.call.request_started_us
    return record.pending.captured_us if started is None else started


def _capture_row(
    plan: CapturePlan, process: str, record: Record, digests: Mapping[str, str]
) -> CaptureRow:
    pending, call = record.pending, record.pending.call
    rank, axes = process_rank(), _variable_axes(record)
    provenance = _provenance(plan, process, record)
    descriptors = _input_descriptors(pending.inputs, digests)
    uuid = capture_uuid(call.definition.name, descriptors, provenance)
    outputs = [(name, digests[name]) for name in call.definition.outputs]
    stated = {
        "definition": call.definition.name,
        "uuid": uuid,
        "axes": axes,
        "inputs": descriptors,
        "expected_output": _expected(outputs),
        "strides": {**pending.strides, **record.output_strides},
        "stall_us": pending.stall_us,
    }
    return CaptureRow(
        uuid=uuid,
        operation=call.operation,
        site=_site(call, axes, rank),
        captured_us=pending.captured_us,
        receipt=provenance | stated,
        outputs=outputs,
        request_id=call.request_id,
        module_path=call.module_path,
        step=call.step,
        variant=call.variant,
        process_id=_pid(process),
        rank=rank,
        device=pending.device,
        stall_us=pending.stall_us,
    )


def _site(call: Call, axes: Mapping[str, int], rank: int | None) -> str:
    return site_key(
        call.definition.name,
        module_path=call.module_path,
        operation=call.operation,
        step=call.step,
        variant=call.variant,
        axes=axes,
        rank=rank,
    )


def _input_descriptors(
    inputs: Mapping[str, Any], digests: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    return {
        name: tensor_descriptor(digests[name])
        if isinstance(value, Snapshot)
        else scalar_descriptor(value)
        for name, value in inputs.items()
    }


def _expected(outputs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The descriptor of the one output, or each output's by name."""
    descriptors = {name: tensor_descriptor(sha256) for name, sha256 in outputs}
    return next(iter(descriptors.values())) if len(descriptors) == 1 else descriptors


def _pid(process: str) -> int:
    return int(process.rsplit(":", 2)[1])


def _provenance(plan: CapturePlan, process: str, record: Record) -> dict[str, Any]:
    pending, call = record.pending, record.pending.call
    facts = {
        "capture_steps": None if plan.steps is None else list(plan.steps),
        **plan.provenance,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "host": process.rsplit(":", 2)[0],
        "device": pending.device,
        "device_name": _device_name(pending.device),
        "environment": allowed_variables(),
        "torch_switches": torch_switches(),
        "rank": process_rank(),
        "run": plan.run_uuid,
        "process": process,
        "process_id": _pid(process),
        "occurrence": record.occurrence,
        "request_id": call.request_id,
        "request": call.request,
        "started_at": _request_started(record) / 1e6,
        "captured_at": pending.captured_us / 1e6,
        "step": call.step,
        "operation": call.operation,
        "module_path": call.module_path,
        "variant": call.variant,
        **call.receipt,
    }
    return {key: plain_json(value) for key, value in facts.items() if value is not None}


@lru_cache(maxsize=16)
def _device_name(device: str) -> str | None:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else None
