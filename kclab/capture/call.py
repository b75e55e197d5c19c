"""One operator call of the engine, as an adapter hands it to the recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.capture.snapshot import Snapshot
    from kclab.core.definition import Definition


@dataclass(slots=True)
class Call:
    """A call that is about to happen, named by its definition."""

    definition: Definition
    inputs: Mapping[str, Tensor | int | float | bool]
    """By the definition's input names; views are fine, nothing is read before `begin`."""
    operation: str
    """What the engine called: `torch.nn.functional.linear`."""
    request_id: str
    step: int
    """Which call of the root within the request, from 0."""
    module_path: str | None = None
    """The module that made the call, as `transformer_blocks.0.attn.to_q`."""
    variant: str | None = None
    """What tells calls of one definition apart within a step: `rows_4096` for a GEMM."""
    receipt: Mapping[str, Any] = field(default_factory=dict)
    """Provenance that only the adapter knows: prefix segments, an adapter note."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """The request's full payload."""
    request_started_us: int | None = None
    """When the request began; the first call's time unless given."""


@dataclass(slots=True)
class Pending:
    """A call whose inputs are copied, waiting for its outputs."""

    call: Call
    axes: dict[str, int]
    """Sizes of all the definition's axes."""
    inputs: dict[str, Snapshot | int | float | bool]
    strides: dict[str, list[int]]
    """Element strides of each tensor as the engine held it."""
    device: str
    captured_us: int
    reserved: int
    """Bytes that this call holds of the run's allowance."""
    claim: str | None
    """The claim on `--max-per-axes` that it holds."""
    staged: int = 0
    """Bytes of those that wait on the device; the others hold room in the queue."""
    stall_us: int = 0
    """Spent on the engine's thread so far to check and copy this call's tensors, microseconds."""

    @property
    def queued(self) -> int:
        """Bytes that it holds of the queue's room."""
        return self.reserved - self.staged
