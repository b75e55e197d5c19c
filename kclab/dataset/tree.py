"""Where an import reads its files: a folder, or one that is filled while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Tree(Protocol):
    """The files of one import source."""

    @property
    def path(self) -> Path:
        """The folder (or database file) to read."""

    @property
    def origin(self) -> str:
        """What rows and messages call it."""

    def fetch(self, locations: Iterable[str]) -> None:
        """Have the files at these absolute paths here, those that there are."""

    def doubt(self, location: str) -> None:
        """A file did not hold what its name says: keep no copy of it."""

    def facts(self, location: str) -> list[Any]:
        """What changes when a file does, as JSON values; nothing for a file that is not there."""

    def tensor_files(self, folder: Path) -> Iterator[str]:
        """Every `.safetensors` below `folder`, relative to it, with `/`."""


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A folder of this machine."""

    path: Path
    origin: str

    def fetch(self, locations: Iterable[str]) -> None:
        """All is here."""

    def doubt(self, location: str) -> None:
        """The file is its owner's."""

    def facts(self, location: str) -> list[Any]:
        """Size, mtime in nanoseconds, inode."""
        try:
            found = Path(location).lstat()
        except OSError:
            return []
        return [found.st_size, found.st_mtime_ns, found.st_ino]

    def tensor_files(self, folder: Path) -> Iterator[str]:
        """See Tree."""
        for path in folder.rglob("*.safetensors"):
            yield path.relative_to(folder).as_posix()
