"""The feed-forward of a block, cut where FC2's boundary is.

fc1's output holds the gate in its first half, as checkpoints store it; diffusers' own
`FeedForward` expects it in the second half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2K], the gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


class Fc2(nn.Module):
    """SwiGLU and the product after it. `forward_swiglu` is the one method that others replace."""

    def __init__(self, ffn: int, hidden: int):
        super().__init__()
        self.linear: nn.Module = nn.Linear(ffn, hidden, bias=False)

    def forward_swiglu(self, gate_up: Tensor) -> Tensor:
        """[M, 2K] to [M, N], in the model's own arithmetic."""
        result: Tensor = self.linear(swiglu(gate_up))
        return result


class FeedForward(nn.Module):
    """[..., hidden] to [..., hidden]."""

    def __init__(self, hidden: int, ffn: int):
        super().__init__()
        self.fc1: nn.Module = nn.Linear(hidden, 2 * ffn, bias=False)
        self.fc2 = Fc2(ffn, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self.fc2.forward_swiglu(self.fc1(rows)).reshape(hidden.shape)


def bias_of(linear: nn.Module) -> Tensor | None:
    """A linear layer's bias, if it has one."""
    bias = getattr(linear, "bias", None)
    return bias if isinstance(bias, torch.Tensor) else None
