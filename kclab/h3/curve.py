"""AdaLN of pruned checkpoints: a table over time instead of a time embedding.

The table [1025, 8] is interpolated at 1024 t; its eight numbers go straight into each block's
projection, in float32 and without an activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from kclab.h3.sizes import MODALITIES

if TYPE_CHECKING:
    from torch import Tensor

CURVE_POINTS = 1025


class CurveTime(nn.Module):
    """Times [T] in [0, 1] to float32 [T, dim]."""

    def __init__(self, dim: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(CURVE_POINTS, dim))

    def forward(self, times: Tensor) -> Tensor:
        place = times.float().clamp(0, 1) * (CURVE_POINTS - 1)
        left = place.floor().clamp(max=CURVE_POINTS - 2).long()
        share = (place - left).unsqueeze(-1)
        return torch.lerp(self.table[left], self.table[left + 1], share)


class CurveModulation(nn.Module):
    """[T, dim] to six [3 T, hidden] tables: shift, scale and gate of attention, then of the MLP."""

    def __init__(self, dim: int, hidden: int, dtype: torch.dtype):
        super().__init__()
        self.linear = nn.Linear(dim, 6 * hidden * MODALITIES)
        self._hidden, self._dtype = hidden, dtype

    def forward(self, embedded: Tensor) -> tuple[Tensor, ...]:
        rows: Tensor = self.linear(embedded).reshape(-1, 6 * self._hidden).to(self._dtype)
        return tuple(rows.chunk(6, dim=-1))


class CurveNormOut(nn.Module):
    """The last norm, shifted and scaled by its token's time; modalities share the parameters."""

    def __init__(self, dim: int, hidden: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.linear = nn.Linear(dim, 2 * hidden)
        self._dtype = dtype

    def forward(self, hidden: Tensor, embedded: Tensor, rows: Tensor) -> Tensor:
        shift, scale = self.linear(embedded).to(self._dtype).chunk(2, dim=-1)
        modulated: Tensor = self.norm(hidden) * (1 + scale[rows]) + shift[rows]
        return modulated
