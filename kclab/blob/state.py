"""What is behind a digest right now, by a look at the file's header (see `BlobFolder.verify`)."""

from __future__ import annotations

from enum import StrEnum

from kclab.blob.folder import BlobFolder
from kclab.blob.safetensors_file import TENSOR_KEY, read_slots
from kclab.core.errors import BlobAbsent, BlobDamaged


class BlobState(StrEnum):
    """Whether a blob's bytes can be had."""

    PRESENT = "present"
    """The file is there with a sound header and the right length; its content is not re-hashed."""
    ABSENT = "absent"
    """The row says that the bytes are elsewhere, or the file is a Git LFS pointer."""
    MISSING = "missing"
    """The row says present, but there is no file."""
    DAMAGED = "damaged"
    """The file is not what the row says: `kclab db check` tells more."""


def blob_state(folder: BlobFolder, sha256: str, nbytes: int, *, present: bool) -> BlobState:
    """Look at one blob's file; `nbytes` and `present` are what its row says."""
    if not present:
        return BlobState.ABSENT
    path = folder.path(sha256)
    try:
        with path.open("rb", buffering=0) as file:
            slots = read_slots(file, path)
    except FileNotFoundError:
        return BlobState.MISSING
    except BlobAbsent:
        return BlobState.ABSENT
    except (BlobDamaged, OSError):
        return BlobState.DAMAGED
    slot = slots.get(TENSOR_KEY)
    return BlobState.PRESENT if slot and slot.nbytes == nbytes else BlobState.DAMAGED
