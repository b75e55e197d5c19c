"""Reading a workload's tensors: from plain files, verified by digest once per process."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from kclab.blob.folder import read_tensor
from kclab.blob.tensors import to_tensor
from kclab.core.digest import tensor_digest
from kclab.core.errors import BlobAbsent, BlobDamaged
from kclab.replay.file_state import FileState, file_state
from kclab.replay.task import StoredTensor


class TensorLoader:
    """Loads stored tensors onto one device; every load is a fresh copy."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._verified: dict[str, FileState] = {}

    def load(self, stored: StoredTensor) -> Tensor:
        """The tensor; raises BlobDamaged or BlobAbsent, naming the file."""
        try:
            path = Path(stored.path)
            state = file_state(path)
            tensor = read_tensor(path, stored.key)
        except FileNotFoundError:
            raise BlobAbsent(f"no blob {stored.path}; import or fetch its source again") from None
        except OSError as error:
            raise BlobAbsent(f"blob {stored.path} cannot be read: {error.strerror}") from error
        if stored.sha256 is not None and self._verified.get(stored.path) != state:
            found = tensor_digest(tensor.dtype, tensor.shape, tensor.data)
            if found != stored.sha256:
                raise BlobDamaged(
                    f"damaged blob {stored.path}: its content has digest {found[:12]}…,"
                    f" not {stored.sha256[:12]}…"
                )
            self._verified[stored.path] = state
        return to_tensor(tensor, self.device)
