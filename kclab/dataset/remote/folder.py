"""The folder beside the store where one URL's files wait: `remote/<key>/`, one process at a time.

It holds what a broken-off transfer has done, so that the next one goes on from there; a finished
one removes it, and so may anybody while no transfer runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kclab.core.digest import text_sha256
from kclab.core.errors import DatabaseBusy
from kclab.db.store import Store

FOLDER = "remote"


@contextmanager
def waiting_folder(store: Store, what: str) -> Iterator[Path]:
    """The folder of one transfer (`import of s3://…`), locked; it stays when the block raises.

    Raises DatabaseBusy while another process of this machine has it.
    """
    parent = store.database.parent / FOLDER
    folder = parent / text_sha256(what)[:16]
    parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(lock, folder, what)
        try:
            yield folder
            shutil.rmtree(folder)
        finally:
            _remove_empty(folder)
    finally:
        os.close(lock)
        _remove_empty(parent)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _lock(lock: int, folder: Path, what: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), folder.stat()):
            raise FileNotFoundError  # its owner removed it between our look and our lock
    except (BlockingIOError, FileNotFoundError):
        raise DatabaseBusy(f"another {what} is under way; wait for it, or stop it.") from None
