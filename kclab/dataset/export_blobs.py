"""A store's blobs into an export: verified on the way, extents shared where that can be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from kclab.blob.batch import write_all
from kclab.blob.folder import BlobFolder
from kclab.blob.safetensors_file import TENSOR_KEY, encode_header
from kclab.core.digest import tensor_digest
from kclab.core.errors import BlobDamaged
from kclab.dataset.source_file import CHUNK, SourceFile, Tensor


@dataclass(slots=True)
class BlobCopier:
    """Copies blobs of `folder`, each to a place once."""

    folder: BlobFolder
    link: bool = False
    """Hard-link unchanged files where that can be: for a folder that is only read and removed."""
    copied: set[str] = field(default_factory=set)
    """Target paths."""
    originals: set[str] = field(default_factory=set)
    """Digests whose unchanged file is somewhere in the export."""
    nbytes: int = 0
    _buffer: bytearray = field(default_factory=lambda: bytearray(CHUNK))

    def copy(self, sha256: str, target: Path) -> None:
        """Put a blob's file at `target`; raises BlobDamaged when its content is not its name's."""
        if str(target) in self.copied:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with SourceFile(str(self.folder.path(sha256))) as file:
            tensor = file.tensor(TENSOR_KEY)
            if not isinstance(tensor, Tensor):
                reason = getattr(tensor, "reason", "a Git LFS pointer")
                raise BlobDamaged(f"blob {sha256[:12]}…: {reason}")
            if self.link and tensor.whole_file and file.link(str(target)):
                found = file.digest(tensor, self._buffer, None)
            elif file.data is not None:
                file.write(tensor, str(target))
                found = file.digest(tensor, self._buffer, None)
            else:
                cloned = tensor.whole_file and file.clone(str(target))
                found = file.digest(tensor, self._buffer, None if cloned else str(target))
            self.nbytes += tensor.slot.nbytes
        if found != sha256:
            raise BlobDamaged(
                f"damaged blob {self.folder.path(sha256)}; re-import it with"
                " kclab import PATH --repair, then export again."
            )
        self.copied.add(str(target))
        self.originals.add(sha256)

    def copy_as(self, sha256: str, dtype: str, folder: Path) -> str:
        """Write a blob's bytes as another dtype of the same size; returns the file's digest."""
        stored = self.folder.read(sha256)
        if tensor_digest(stored.dtype, stored.shape, stored.data) != sha256:
            raise BlobDamaged(f"damaged blob {self.folder.path(sha256)}.")
        digest = tensor_digest(dtype, stored.shape, stored.data)
        target = folder / f"{digest}.safetensors"
        if str(target) not in self.copied:
            folder.mkdir(parents=True, exist_ok=True)
            size = memoryview(stored.data).nbytes
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(descriptor, encode_header(dtype, tuple(stored.shape), size), stored.data)
            finally:
                os.close(descriptor)
            self.copied.add(str(target))
            self.nbytes += size
        return digest
