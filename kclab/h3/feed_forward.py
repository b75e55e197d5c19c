"""The feed-forward of a block, cut where FC2's boundary is.

fc1's output holds the gate in its first half, as checkpoints store it; diffusers' own
`FeedForward` expects it in the second half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2K], the gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


Fc2Method = Callable[["Tensor"], "Tensor"]
"""fc1's output [M, 2K], gate first, to FC2's output [M, N]."""


class Fc2(nn.Module):
    """SwiGLU and the product after it."""

    def __init__(self, ffn: int, hidden: int):
        super().__init__()
        self.linear: nn.Module = nn.Linear(ffn, hidden, bias=False)
        self.method: Fc2Method = self.own
        """What runs; `replaced` puts another one in its place."""

    def own(self, gate_up: Tensor) -> Tensor:
        """In the model's own arithmetic."""
        result: Tensor = self.linear(swiglu(gate_up))
        return result


@contextmanager
def replaced(fc2: Fc2, method: Fc2Method) -> Iterator[None]:
    """Compute a block's FC2 by another method, until the block of code ends, however it ends."""
    before = fc2.method
    fc2.method = method
    try:
        yield
    finally:
        fc2.method = before


class FeedForward(nn.Module):
    """[..., hidden] to [..., hidden]."""

    def __init__(self, hidden: int, ffn: int):
        super().__init__()
        self.fc1: nn.Module = nn.Linear(hidden, 2 * ffn, bias=False)
        self.fc2 = Fc2(ffn, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self.fc2.method(self.fc1(rows)).reshape(hidden.shape)


def bias_of(linear: nn.Module) -> Tensor | None:
    """A linear layer's bias, if it has one."""
    bias = getattr(linear, "bias", None)
    return bias if isinstance(bias, torch.Tensor) else None


def fc2_of(block: nn.Module) -> Fc2:
    """The FC2 of a transformer block."""
    fc2 = block.get_submodule("ff.fc2")
    assert isinstance(fc2, Fc2)
    return fc2
