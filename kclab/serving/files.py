"""Files that a store keeps besides tensors: images, by content, and each run's server log.

files/ab/cdef….png          by the sha256 of the bytes
runs/<run uuid>/server.log
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

from kclab.db.store import Store

FILES_FOLDER = "files"
RUNS_FOLDER = "runs"


def sha256_of(data: bytes) -> str:
    """The digest that a kept file is named by."""
    return hashlib.sha256(data).hexdigest()


def file_path(store: Store, sha256: str, suffix: str) -> Path:
    """Where a file with this content lies, whether or not it exists; `suffix` as `.png`."""
    return store.database.parent / FILES_FOLDER / sha256[:2] / f"{sha256[2:]}{suffix}"


def keep_file(store: Store, data: bytes, suffix: str) -> str:
    """Store bytes under their digest, whole and durable before this returns; the digest.

    Mode 0666 & ~umask. A file of that name with other bytes is replaced.
    """
    digest = sha256_of(data)
    path = file_path(store, digest, suffix)
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            _write(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    return digest


def run_folder(store: Store, run_uuid: str) -> Path:
    """A run's own folder, made if it is not there."""
    folder = store.database.parent / RUNS_FOLDER / run_uuid
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
