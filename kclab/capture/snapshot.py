"""A tensor as it was at one moment, copied before the engine can change it.

The engine's thread copies in memory order (a plain memcpy even for `W.t()`). A GPU's tensors are
copied on the GPU where it has room, else to the host, asynchronously; fetching, putting the
elements in logical order and hashing them is the writer's work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kclab.blob.folder import TensorBytes
from kclab.blob.tensors import dtype_name, tensor_buffer
from kclab.capture.checksum import (
    HOST_CHECKSUM,
    WORTH_BYTES,
    ContentKey,
    DenseView,
    KnownTensors,
    can_recognise,
    content_key,
    dense_view,
)
from kclab.core.digest import DTYPES, element_count
from kclab.core.errors import BadUsage


@dataclass(slots=True)
class Snapshot:
    """One tensor's content, or the digest of the same content stored before."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str | None = None
    """Set where the content is known already: nothing was copied."""
    key: ContentKey | None = None
    """The content key, where it was computed on the engine's thread."""
    order: tuple[int, ...] = ()
    """Memory order of `copy`; see `DenseView`."""
    copy: Tensor | None = None
    ready: Any = None
    """CUDA event after which `copy` is complete."""
    staged: bool = False
    """Whether `copy` is to be made on the tensor's own device."""

    @property
    def waits_on_device(self) -> bool:
        """Whether `copy` is still to be fetched."""
        return self.staged and self.copy is not None

    @property
    def bytes_to_copy(self) -> int:
        """Host memory that the copy takes; none where the content is stored already."""
        return self.nbytes if self.digest is None else 0


def refuse_exotic(name: str, tensor: Tensor) -> None:
    """Raise BadUsage for a tensor that has no plain memory: sparse, meta, fake, wrapped."""
    dtype_name(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise BadUsage(f"{name} is a {tensor.layout} tensor, not a plain one.")
    if tensor.device.type == "meta" or _is_wrapper(tensor):
        raise BadUsage(f"{name} is a {type(tensor).__name__} without memory of its own.")


def _is_wrapper(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
    # Fake tensors, DTensors and the like dispatch to Python; harmless subclasses do not.
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def recognise(tensor: Tensor, known: KnownTensors, *, staged: bool = False) -> Snapshot:
    """A snapshot without a copy yet; its digest is set where the content is stored already.

    Spends a checksum on a large tensor, unless nothing of its dtype and shape was stored before.
    On a GPU the engine's thread waits for the checksum.
    """
    snapshot = blank_snapshot(tensor, staged=staged)
    if snapshot.nbytes < WORTH_BYTES or not can_recognise(tensor):
        return snapshot
    # On the CPU a first sight is only copied: the writer finds its key, off this thread.
    if tensor.device.type == "cpu" and not known.has_form(snapshot.dtype, snapshot.shape):
        return snapshot
    with torch.no_grad():
        view = dense_view(_plain(tensor))
        if view is not None:
            snapshot.key = content_key(snapshot.dtype, snapshot.shape, view)
            snapshot.digest = known.digest(snapshot.key)
    return snapshot


def blank_snapshot(tensor: Tensor, *, staged: bool = False) -> Snapshot:
    """A tensor's form alone."""
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    return Snapshot(dtype, shape, element_count(shape) * DTYPES[dtype].itemsize, staged=staged)


def fill(snapshot: Snapshot, tensor: Tensor) -> Snapshot:
    """Copy the tensor's values, unless they are stored already."""
    if snapshot.digest is None:
        with torch.no_grad():
            _copy(snapshot, _plain(tensor))
    return snapshot


def _plain(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg()
    # torch implements few operations for 8- and 4-bit floats; their bytes copy as well.
    return values.view(torch.uint8) if values.dtype.itemsize == 1 else values


def _copy(snapshot: Snapshot, plain: Tensor) -> None:
    view = dense_view(plain)
    source = plain if view is None else view.tensor
    snapshot.order = () if view is None else view.order
    if snapshot.staged:
        snapshot.copy = source.clone(memory_format=torch.contiguous_format)
        snapshot.ready = _event(source.device)
    elif source.device.type == "cuda":
        snapshot.copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        snapshot.copy.copy_(source.contiguous(), non_blocking=True)
        snapshot.ready = _event(source.device)
    elif source.device.type == "cpu":
        snapshot.copy = source.clone(memory_format=torch.contiguous_format)
    else:
        snapshot.copy = source.to("cpu", copy=True).contiguous()


def _event(device: torch.device) -> Any:
    on_gpu = device.type == "cuda"
    return torch.cuda.current_stream(device).record_event() if on_gpu else None


@lru_cache(maxsize=64)
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here


def _beside(device: torch.device) -> AbstractContextManager[Any]:
    """Work on a stream that waits for none of the engine's later work."""
    return torch.cuda.stream(_stream(device)) if device.type == "cuda" else nullcontext()


def key_on_device(snapshot: Snapshot) -> ContentKey | None:
    """The content key of a copy on the device, where it is worth one; on the writer's thread."""
    if snapshot.copy is None or snapshot.nbytes < WORTH_BYTES or not can_recognise(snapshot.copy):
        return None
    with torch.no_grad(), _beside(snapshot.copy.device):
        if snapshot.ready is not None:
            snapshot.ready.wait()
        view = DenseView(snapshot.copy, snapshot.order)
        snapshot.key = content_key(snapshot.dtype, snapshot.shape, view)
    return snapshot.key


def fetch(snapshot: Snapshot) -> None:
    """Bring a copy from the device, whose memory is free then; on the writer's thread."""
    assert snapshot.copy is not None
    with torch.no_grad(), _beside(snapshot.copy.device):
        if snapshot.ready is not None:
            snapshot.ready.wait()
        snapshot.copy = snapshot.copy.cpu()
    snapshot.ready = None


def stored_form(snapshot: Snapshot) -> tuple[TensorBytes, ContentKey | None]:
    """(logical bytes, content key) of a copied snapshot, on the writer's thread."""
    if snapshot.copy is None:
        raise ValueError("a recognised snapshot has no bytes of its own")
    if snapshot.ready is not None:
        snapshot.ready.synchronize()
    key = snapshot.key
    if key is None and HOST_CHECKSUM and snapshot.nbytes >= WORTH_BYTES:
        view = DenseView(snapshot.copy, snapshot.order)
        key = content_key(snapshot.dtype, snapshot.shape, view)
    logical = snapshot.copy
    if snapshot.order:
        inverse = sorted(range(len(snapshot.order)), key=snapshot.order.__getitem__)
        logical = logical.permute(inverse).contiguous()
    return TensorBytes(snapshot.dtype, snapshot.shape, tensor_buffer(logical)), key
