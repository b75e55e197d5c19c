"""Digests of whole files, as services and our own lists of files tell them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

PART = 16 << 20
"""Bytes of one part of a large upload."""
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """One digest of a file's bytes."""

    kind: str
    """`sha256`, or `git sha1`: of git's header and the bytes."""
    value: str

    def of(self, file: Path) -> Digest:
        """The digest of the same kind that `file` has."""
        return sha256(file) if self.kind == "sha256" else _git_sha1(file)

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:12]}…"


def sha256(file: Path) -> Digest:
    """Of the file's bytes."""
    with file.open("rb") as opened:
        return Digest("sha256", hashlib.file_digest(opened, "sha256").hexdigest())


def _git_sha1(file: Path) -> Digest:
    head = b"blob %d\0" % file.stat().st_size
    hasher = hashlib.sha1(head, usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            hasher.update(chunk)
    return Digest("git sha1", hasher.hexdigest())


def etag(file: Path) -> str:
    """The ETag that S3 gives a file sent in parts of PART bytes, but in buckets with KMS keys.

    It is the MD5 of the bytes; of a file that comes in parts (two or more whole ones), the MD5 of
    the parts' MD5s, and how many they are.
    """
    size, parts = file.stat().st_size, []
    with file.open("rb") as opened:
        if size < 2 * PART:
            return hashlib.md5(opened.read(), usedforsecurity=False).hexdigest()
        while part := opened.read(PART):
            parts.append(hashlib.md5(part, usedforsecurity=False).digest())
    whole = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(parts)}"
