"""Paths that a dataset names, kept inside its root.

A descriptor's path is text that somebody else wrote. It is refused, before anything is opened,
when it is absolute, climbs with `..`, carries a Windows drive or backslash or a NUL, or when a
symbolic link on the way leads out of the root. `./` is dropped.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kclab.core.errors import DatasetRefused

PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib")
"""Files that load by running code; kclab reads none of them."""


def contained(root: Path, text: str) -> Path:
    """The file that `text` names under `root`; raises DatasetRefused when it could lie outside."""
    return Path(Containment(root).locate(text))


class Containment:
    """Checks many paths of one root; each folder is resolved and looked through once."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._folders: dict[str, tuple[str, frozenset[str]]] = {}
        """Folder as written to (its real path, the names in it that are links)."""

    def locate(self, text: str) -> str:
        """The absolute path of `text`; raises DatasetRefused. The file need not exist."""
        folder, _, name = text.rpartition("/")
        known = self._folders.get(folder) if folder and _is_plain(name) else None
        if known is None:
            parts = relative_parts(text)
            folder, name = "/".join(parts[:-1]), parts[-1]
            known = self._folders.get(folder) or self._look_through(folder, text)
        real, links = known
        path = f"{real}/{name}"
        return self._inside(os.path.realpath(path), text) if name in links else path

    def _look_through(self, folder: str, text: str) -> tuple[str, frozenset[str]]:
        real = self._inside(os.path.realpath(f"{self.root}/{folder}"), text)
        links: frozenset[str] = frozenset()
        with contextlib.suppress(OSError), os.scandir(real) as entries:
            links = frozenset(entry.name for entry in entries if entry.is_symlink())
        self._folders[folder] = real, links
        return real, links

    def _inside(self, path: str, text: str) -> str:
        if path != self.root and not path.startswith(self.root.rstrip("/") + "/"):
            raise DatasetRefused(f"path {text!r} leads out of the dataset through a symbolic link.")
        return path


def _is_plain(name: str) -> bool:
    """Whether a file's name needs no closer look."""
    return name.endswith(".safetensors") and "\\" not in name and "\0" not in name


def relative_parts(text: str) -> list[str]:
    """As `plain_parts`; raises DatasetRefused for a pickle too."""
    parts = plain_parts(text)
    if parts[-1].lower().endswith(PICKLE_SUFFIXES):
        raise DatasetRefused(f"path {text!r} is a pickle, which runs code when it is loaded.")
    return parts


def plain_parts(text: str) -> list[str]:
    """The parts of a relative path, `.` dropped; raises DatasetRefused for any other path."""
    if "\0" in text:
        raise DatasetRefused(f"path {text!r} holds a NUL byte.")
    if text.startswith("/"):
        raise DatasetRefused(f"path {text!r} is absolute; a dataset may name only its own files.")
    if "\\" in text or text[1:2] == ":":
        raise DatasetRefused(f"path {text!r} is a Windows path; a dataset separates with '/'.")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise DatasetRefused(f"path {text!r} climbs out with '..'.")
    if not parts:
        raise DatasetRefused(f"path {text!r} names no file.")
    return parts
