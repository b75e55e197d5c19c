"""One call found in a dump, in a family's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.core.definition import Definition


@dataclass(frozen=True, slots=True)
class DumpedCall:
    """Complete inputs and outputs of one call."""

    definition: Definition
    inputs: Mapping[str, Tensor | int | float | bool]
    outputs: Mapping[str, Tensor]
    operation: str
    """What the engine called."""
    step: int
    """The pass or call, counted as the dump counts."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the receipt says: module path, rank, versions."""


class Skipped(Exception):
    """A dumped call that no family describes; its message says which and why."""


DTYPE_TAGS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def tag_of(tensor: Tensor, what: str) -> str:
    """How families spell the tensor's dtype; raises Skipped."""
    tag = DTYPE_TAGS.get(str(tensor.dtype))
    if tag is None:
        raise Skipped(f"{what}: dtype {str(tensor.dtype).removeprefix('torch.')}")
    return tag
