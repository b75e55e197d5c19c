"""`kclab/upload.json`: what an export to a URL says of itself.

It is the first object that an export writes, saying that it is not complete, and the last, with
every file's size and the digest of those that no name tells. An import believes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import DatasetRefused
from kclab.dataset.remote.digests import Digest
from kclab.dataset.remote.place import Place, RemoteObject

NAME = "kclab/upload.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `kclab/upload.json`."""

    complete: bool
    files: Mapping[str, tuple[int, Digest | None]]
    """Name to (size, digest); a tensor's file has its digest for a name."""

    def encode(self) -> bytes:
        """As JSON."""
        files = {
            name: {"size": size, **({"sha256": digest.value} if digest else {})}
            for name, (size, digest) in sorted(self.files.items())
        }
        text = json.dumps({"complete": self.complete, "files": files}, indent=1)
        return f"{text}\n".encode()

    @classmethod
    def read(cls, place: Place, objects: Mapping[str, RemoteObject]) -> Manifest | None:
        """The one among a place's objects, if it is there; raises as `decode`."""
        listed = objects.get(NAME)
        if listed is None:
            return None
        data = place.read(f"{place.root}/{NAME}", 0, listed.size) if listed.size else b""
        return cls.decode(data, f"{place.url}/{NAME}")

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Raises DatasetRefused naming `where` for anything else."""
        try:
            body = json.loads(data)
            files = {str(name): _entry(entry) for name, entry in body["files"].items()}
            return cls(body["complete"] is True, files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DatasetRefused(f"{where}: not what kclab export writes ({error!r}).") from error


def _entry(entry: Mapping[str, Any]) -> tuple[int, Digest | None]:
    sha256 = entry.get("sha256")
    return int(entry["size"]), Digest("sha256", str(sha256)) if sha256 else None
