"""Whether a file is still, or on another machine too, the one that was looked at."""

from __future__ import annotations

from pathlib import Path

FileState = tuple[int, int, int]
"""(inode, size, modification time in ns): a file that keeps all three was not written to."""


def file_state(path: Path) -> FileState:
    """The state of a file. Raises OSError."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
