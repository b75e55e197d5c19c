"""Which file system a path lies on, and whether a database is safe there."""

from __future__ import annotations

import re
from pathlib import Path

UNSAFE_FOR_WAL = {
    "nfs": "a network file system",
    "nfs4": "a network file system",
    "cifs": "a network file system",
    "smb3": "a network file system",
    "smbfs": "a network file system",
    "afs": "a network file system",
    "ceph": "a network file system",
    "lustre": "a network file system",
    "beegfs": "a network file system",
    "gpfs": "a network file system",
    "9p": "a folder shared from the host (WSL's /mnt/c, a virtual machine)",
    "drvfs": "a Windows drive in WSL",
    "virtiofs": "a folder shared from the host of a virtual machine",
    "vboxsf": "a folder shared from the host of a virtual machine",
    "fuse.sshfs": "a network file system",
    "fuse.gcsfuse": "an object store",
    "fuse.s3fs": "an object store",
    "fuse.mergerfs": "a union of file systems, often without mmap",
}
"""Type to what it is. SQLite's WAL needs memory shared between all processes that use the file."""

FLEETING = ("tmpfs", "ramfs")
"""In memory: gone after a reboot."""


def file_system_type(path: Path, mounts: str | None = None) -> str | None:
    """The type of the mount that holds `path`, as `ext4`; None where the system does not tell.

    The folder need not exist yet: its nearest existing parent counts. `mounts` is the text of
    /proc/self/mountinfo (proc(5)), read where it is not given.
    """
    if mounts is None:
        table = Path("/proc/self/mountinfo")
        if not table.is_file():
            return None
        mounts = table.read_text(encoding="utf-8", errors="replace")
    target = path.resolve()
    best: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        point = Path(_unescaped(left.split(" ")[4]))
        depth = len(point.parts)
        # Of mounts on one point the last one is on top.
        if target.is_relative_to(point) and depth >= best[0]:
            best = (depth, right.split(" ")[0])
    return best[1]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
