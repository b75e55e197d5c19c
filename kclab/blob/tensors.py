"""Between torch tensors and stored bytes. The only part of the blob layer that loads torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kclab.blob.folder import TensorBytes
from kclab.core.digest import DTYPES
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from torch import Tensor

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)
}
"""torch dtypes by kclab's names, as far as this torch has them."""


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as `bfloat16`; raises BadUsage for a dtype that no store can hold."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise BadUsage(f"dtype {dtype} cannot be stored; known are {', '.join(sorted(DTYPES))}.")
    return name


def tensor_buffer(tensor: Tensor) -> Any:
    """The bytes of a contiguous CPU tensor, without a copy; any dtype, 0-d and empty included."""
    if tensor.numel() == 0:
        return b""
    # Not reshape(-1): it keeps the stride of a single element, and view refuses any but 1.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def to_bytes(tensor: Tensor) -> TensorBytes:
    """A tensor's logical values as contiguous bytes; copies only where it must."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return TensorBytes(dtype_name(plain.dtype), tuple(plain.shape), tensor_buffer(plain))


def to_tensor(stored: TensorBytes, device: str = "cpu") -> Tensor:
    """The torch tensor of stored bytes; on the CPU it shares their memory."""
    dtype = TORCH_DTYPES[stored.dtype]
    if memoryview(stored.data).nbytes == 0:
        return torch.empty(stored.shape, dtype=dtype, device=device)
    flat = torch.frombuffer(stored.data, dtype=torch.uint8).view(dtype)
    return flat.reshape(stored.shape).to(device)
