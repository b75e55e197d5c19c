"""A linear layer whose weight is stored in NVFP4, as packed checkpoints have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kclab.core.errors import EnvironmentLacking
from kclab.core.families.references.fc2_nvfp4 import decode

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16
"""Values along K that share a block scale."""

NATIVE_CAPABILITY = (10, 0)
"""The first compute capability whose tensor cores multiply NVFP4."""

TENSOR_RANGE = 6.0 * 448.0
"""amax over this is the activation's tensor scale."""


class PackedLinear(nn.Module):
    """[..., K] to [..., N] without a bias; the weight stays packed."""

    codes: Tensor
    """uint8 [N, K / 2], the even element in the high nibble."""
    scales: Tensor
    """float8_e4m3fn, in the swizzled 128x4 layout: `scales_shape`."""
    tensor_scale: Tensor
    """float32, 0-d."""

    def __init__(self, codes: Tensor, scales: Tensor, tensor_scale: Tensor, *, native: bool):
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("tensor_scale", tensor_scale)
        self._native = native

    def dequantised(self) -> Tensor:
        """bfloat16 [N, K], computed in float32 and rounded once."""
        return (decode(self.codes, self.scales) * self.tensor_scale).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        if self._native:
            return self._multiply_packed(x)
        return nn.functional.linear(x, self.dequantised())

    def _multiply_packed(self, x: Tensor) -> Tensor:
        """The activation is quantised too, its scale found anew each time, as ComfyUI does."""
        import comfy_kitchen

        kitchen: Any = comfy_kitchen
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax().float() / TENSOR_RANGE
        codes, scales = kitchen.quantize_nvfp4(rows, scale, pad_16x=True)
        product: Tensor = kitchen.scaled_mm_nvfp4(
            codes,
            self.codes,
            scale,
            self.tensor_scale,
            scales,
            self.scales,
            out_dtype=torch.bfloat16,
        )
        return product[: len(rows)].reshape(*x.shape[:-1], -1)


def scales_shape(n: int, k: int) -> tuple[int, int]:
    """Shape of the swizzled scales of a weight [N, K]: tiles of 128 rows by 4 blocks."""
    return -(-n // 128) * 128, -(-k // (4 * BLOCK)) * 4


def multiplies_natively(device: str) -> bool:
    """Whether packed layers are multiplied as they are; elsewhere their weights are dequantised.

    Raises EnvironmentLacking where the GPU could and comfy-kitchen is missing.
    """
    if torch.device(device).type != "cuda":
        return False
    if torch.cuda.get_device_capability(device) < NATIVE_CAPABILITY:
        return False
    try:
        import comfy_kitchen  # noqa: F401  (only whether it is there)
    except ImportError as error:
        raise EnvironmentLacking(
            "NVFP4 layers run through comfy-kitchen on this GPU, which is not installed: "
            "pip install 'comfy-kitchen[cublas]'."
        ) from error
    return True
