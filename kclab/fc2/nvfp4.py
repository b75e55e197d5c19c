"""NVFP4 tensors: E2M1 values in pairs, UE4M3 scales for 16 along K in cuBLASLt's 128x4 layout.

value = code * block scale * tensor scale. Two codes share a byte, the even element in the high
nibble, as in comfy-kitchen's tensors and checkpoints; a GEMM only needs both operands to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kclab.fc2.problem import round_up

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16
"""Values along K that share a block scale."""

LARGEST_CODE = 6.0
LARGEST_SCALE = 448.0
TENSOR_RANGE = LARGEST_CODE * LARGEST_SCALE
"""amax / TENSOR_RANGE is the tensor scale: then the largest block scale is 448."""

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""E2M1 magnitudes by code; bit 3 is the sign."""

NAN_SCALE = 0x7F
"""The UE4M3 byte that is NaN."""


@dataclass(frozen=True, slots=True)
class Nvfp4Tensor:
    """A quantised matrix [rows, K]."""

    codes: Tensor
    """uint8 [rows, K / 2]."""
    scales: Tensor
    """float8_e4m3fn [roundup(rows, 128), roundup(K / 16, 4)], swizzled."""
    tensor_scale: Tensor
    """float32, 0-d."""


def scale_offset(row: int, column: int, columns: int) -> int:
    """Where the scale of (row, block column) lies in the swizzled buffer, in bytes.

    Tiles of 128 rows by 4 columns follow each other row by row; inside one, rows are dealt out in
    four groups of 32 (cuBLASLt documentation, "1D block scaling factors layout").
    """
    tile = row // 128 * (round_up(columns, 4) // 4) + column // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def swizzled_shape(rows: int, k: int) -> tuple[int, int]:
    """Shape of the padded scale tensor of a matrix [rows, K]."""
    return round_up(rows, 128), round_up(k // BLOCK, 4)


def swizzle(scales: Tensor) -> Tensor:
    """[rows, columns] scales in the 128x4 layout, padded with zeros."""
    rows, columns = round_up(scales.shape[0], 128), round_up(scales.shape[1], 4)
    padded = torch.zeros(rows, columns, dtype=torch.uint8, device=scales.device)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(torch.uint8)
    tiles = padded.reshape(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(rows, columns).contiguous().view(scales.dtype)


def unswizzle(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """The [rows, columns] scales that `swizzle` was given."""
    full_rows, full_columns = round_up(rows, 128), round_up(columns, 4)
    tiles = swizzled.view(torch.uint8).reshape(full_rows // 128, full_columns // 4, 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(full_rows, full_columns)
    return plain[:rows, :columns].contiguous().view(swizzled.dtype)


def quantise(values: Tensor, tensor_scale: Tensor | None = None) -> Nvfp4Tensor:
    """Quantise a float matrix [rows, K] as comfy-kitchen does: round to nearest, ties to even."""
    x = values.float()
    scale = x.abs().amax() / TENSOR_RANGE if tensor_scale is None else tensor_scale.float()
    scale = scale.reshape(())
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    block_scale = blocks.abs().amax(dim=-1) / LARGEST_CODE / divisor
    stored = block_scale.clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn)
    whole = stored.float() * divisor
    scaled = blocks / torch.where(whole == 0, torch.ones_like(whole), whole).unsqueeze(-1)
    return Nvfp4Tensor(pack(_codes(scaled.reshape(x.shape))), swizzle(stored), scale)


def _codes(scaled: Tensor) -> Tensor:
    """E2M1 codes (uint8, one each) of values in units of their block."""
    magnitude = scaled.abs().clamp(max=LARGEST_CODE)
    # Midpoints between neighbouring codes; a tie goes to the code whose mantissa bit is 0.
    below = torch.tensor([0.25, 1.25, 2.5, 5.0], device=scaled.device)
    above = torch.tensor([0.75, 1.75, 3.5], device=scaled.device)
    code = torch.bucketize(magnitude, below) + torch.bucketize(magnitude, above, right=True)
    return (code + torch.signbit(scaled) * 8).to(torch.uint8)


def pack(codes: Tensor) -> Tensor:
    """[rows, K] codes as [rows, K / 2] bytes, the even element in the high nibble."""
    return codes[:, 0::2] << 4 | codes[:, 1::2]


def unpack(packed: Tensor) -> Tensor:
    """[rows, K / 2] bytes as [rows, K] codes."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).reshape(packed.shape[0], -1)


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 [rows, K] without the tensor scale: that one belongs to alpha.

    In float32 throughout: comfy-kitchen's bf16 dequantisation rounds the scales too.
    """
    table = torch.tensor([*CODES, *(-c for c in CODES)], device=codes.device)
    values = table[unpack(codes).long()]
    rows, k = values.shape
    # UE4M3 has no sign: the top bit is ignored.
    plain = unswizzle(scales, rows, k // BLOCK).view(torch.uint8) & 0x7F
    expanded = plain.view(torch.float8_e4m3fn).float().repeat_interleave(BLOCK, dim=1)
    return values * expanded
