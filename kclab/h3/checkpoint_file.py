"""Reading a checkpoint's tensors, one at a time, without the safetensors library's strictness."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from kclab.blob.folder import TensorBytes
from kclab.blob.safetensors_file import TensorSlot, read_slots
from kclab.blob.tensors import to_tensor
from kclab.core.errors import BadUsage, BlobDamaged, EnvironmentLacking

if TYPE_CHECKING:
    from torch import Tensor

TRAILING_TOLERANCE = 4096
"""Bytes after the payload that are ignored: a published file has 65."""

CHUNK = 16 << 20


class CheckpointFile:
    """A safetensors file whose header has been read; tensors are read when asked for."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self.slots: dict[str, TensorSlot] = read_slots(
                    file, path, trailing=TRAILING_TOLERANCE
                )
        except FileNotFoundError:
            raise EnvironmentLacking(f"checkpoint {path}: no such file.") from None
        except OSError as error:
            raise EnvironmentLacking(f"checkpoint {path}: {error.strerror}.") from error

    def __contains__(self, name: str) -> bool:
        return name in self.slots

    def slot(self, name: str) -> TensorSlot:
        """Dtype and shape of a tensor. Raises BadUsage where the file has none of this name."""
        if name not in self.slots:
            raise BadUsage(f"{self.path}: no tensor {name!r}; this is no pruned H3 checkpoint.")
        return self.slots[name]

    def read(self, name: str, device: str) -> Tensor:
        """One tensor. Raises BadUsage or BlobDamaged."""
        slot = self.slot(name)
        data = bytearray(slot.nbytes)
        view = memoryview(data)
        with self.path.open("rb", buffering=0) as file:
            file.seek(slot.begin)
            while view:
                count = file.readinto(view)
                if not count:
                    raise BlobDamaged(f"{self.path}: shrank while {name} was read.")
                view = view[count:]
        return to_tensor(TensorBytes(slot.dtype, slot.shape, data), device)


def file_sha256(path: Path) -> str:
    """sha256 of a whole file, in constant memory."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
