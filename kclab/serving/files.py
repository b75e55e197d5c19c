"""Files that a serving capture keeps in its store: images, by content, and the server's log."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kclab.blob.kept import KeptName
from kclab.db.store import Store


def sha256_of(data: bytes) -> str:
    """The digest that a kept file is named by."""
    return hashlib.sha256(data).hexdigest()


def file_path(store: Store, sha256: str, suffix: str) -> Path:
    """Where a file with this content lies, whether or not it exists; `suffix` as `.png`."""
    return store.files.path(KeptName(sha256, suffix))


def keep_file(store: Store, data: bytes, suffix: str) -> str:
    """Store bytes under their digest, whole and durable before this returns; the digest."""
    return store.files.keep(data, suffix).sha256


def run_folder(store: Store, run_uuid: str) -> Path:
    """A run's own folder, made if it is not there."""
    folder = store.run_folders / run_uuid
    folder.mkdir(parents=True, exist_ok=True)
    return folder
