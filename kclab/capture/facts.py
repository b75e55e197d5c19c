"""What a call's values are, without reading them: dtypes, shapes, device, expected sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kclab.capture.snapshot import refuse_exotic
from kclab.core.definition import Definition, Scalar, TensorFacts
from kclab.core.digest import DTYPES, element_count


def call_facts(values: Mapping[str, Any]) -> dict[str, TensorFacts | Scalar]:
    """(dtype, shape) of each tensor, scalars as they are; refuses what has no plain memory."""
    facts: dict[str, TensorFacts | Scalar] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            refuse_exotic(name, value)
            facts[name] = (str(value.dtype), tuple(value.shape))
        else:
            facts[name] = value
    return facts


def call_device(inputs: Mapping[str, Any]) -> str:
    """The device of the first tensor, as `cuda:0`."""
    tensors = (value for value in inputs.values() if isinstance(value, Tensor))
    first = next(tensors, None)
    return "cpu" if first is None else str(first.device)


def in_graph_capture(inputs: Mapping[str, Any]) -> bool:
    """Whether the call is being recorded into a CUDA graph, where nothing may be copied."""
    on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in inputs.values())
    return on_gpu and torch.cuda.is_current_stream_capturing()


def output_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    """What the outputs will take, as far as the inputs' axes tell."""
    shapes = [(spec.dtype, spec.shape or ()) for spec in definition.outputs.values()]
    return sum(
        element_count([axes.get(axis, 1) for axis in shape]) * DTYPES[dtype].itemsize
        for dtype, shape in shapes
    )
