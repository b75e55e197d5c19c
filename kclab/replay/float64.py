"""Running a reference in float64: the truth that `--oracle` measures against.

kclab's own references compute in `promote_types(x.dtype, float32)`, so float64 inputs are enough
for them. Others name their dtypes (`.float()`, `.to(torch.bfloat16)`, `dtype=torch.float32`):
inside this mode every narrower float that a torch call names means float64. Reinterpreting bits
(`view(dtype)`) and conversions to 8- and 4-bit floats keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kclab.replay.references import Reference

WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}

_SHORTHANDS: frozenset[Any] = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})
_BITWISE: frozenset[Any] = frozenset({Tensor.view, torch.frombuffer})


class Float64Mode(TorchFunctionMode):
    """Turns each narrower float dtype that a torch call names into float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _SHORTHANDS:
            return Tensor.double(args[0])
        if func not in _BITWISE:
            args = tuple(_wider(value) for value in args)
            named = {name: _wider(value) for name, value in named.items()}
        return func(*args, **named)


def _wider(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def widened(value: Any) -> Any:
    """An input in float64 (complex128); low-bit floats and integers stay as they are."""
    if isinstance(value, Tensor) and value.dtype in WIDER:
        return value.to(WIDER[value.dtype])
    return value


def truth_of(reference: Reference, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The reference's outputs by name, computed in float64; raises as the reference does."""
    wide = {name: widened(value) for name, value in inputs.items()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Mode():
            return reference(wide)
    finally:
        torch.set_default_dtype(before)


def magnitude_of(reference: Reference, inputs: Mapping[str, Any]) -> Tensor:
    """|A| |W|^T (+ |bias|) of a GEMM: its reference in float64 on the absolute inputs."""
    absolute = {
        name: widened(value).abs() if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
    (output,) = truth_of(reference, absolute).values()
    return output
