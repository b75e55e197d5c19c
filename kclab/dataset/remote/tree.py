"""A remote dataset as an import reads it: rows first, then each tensor that the store lacks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.core.errors import KclabError
from kclab.dataset.cases import Refusal
from kclab.dataset.options import RootRefused
from kclab.dataset.remote.download import Download
from kclab.dataset.remote.place import RemoteObject


@dataclass(frozen=True, slots=True)
class RemoteTree:
    """The copy of a remote folder that grows as an import asks for files; see `Tree`."""

    path: Path
    """The root, or the database file, as an import reads it."""
    origin: str
    base: Path
    """The copy of the remote folder; absolute, without links."""
    objects: Mapping[str, RemoteObject]
    download: Download

    def fetch(self, locations: Iterable[str]) -> None:
        """See Tree; raises DatasetRefused for an altered object, EnvironmentLacking for faults."""
        found = (self._object(location) for location in locations)
        with _cycle_search():
            self.download.fetch({one.name: one for one in found if one is not None}.values())

    def doubt(self, location: str) -> None:
        """See Tree."""
        one = self._object(location)
        if one is not None:
            self.download.forget(one)

    def facts(self, location: str) -> list[Any]:
        """Size and version, as the service tells them."""
        one = self._object(location)
        return [] if one is None or not one.version else [one.size, one.version]

    def tensor_files(self, folder: Path) -> Iterator[str]:
        """See Tree."""
        begin = folder.relative_to(self.base).as_posix() + "/"
        for name in self.objects:
            if name.startswith(begin) and name.endswith(".safetensors"):
                yield name.removeprefix(begin)

    def _object(self, location: str) -> RemoteObject | None:
        return self.objects.get(os.path.relpath(location, self.base))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors speak of the URL, not of the copy."""
        try:
            yield
        except KclabError as error:
            error.args = tuple(self.renamed(str(part)) for part in error.args)
            if isinstance(error, RootRefused):
                error.refusals = self.renamed_refusals(error.refusals)
            raise

    def renamed(self, text: str) -> str:
        """`text` with the URL in place of the copy's path."""
        own = self.origin if self.path == self.base else self.origin.rpartition("/")[0]
        return text.replace(str(self.base), own).replace(
            str(self.base.parent), own.rpartition("/")[0]
        )

    def renamed_refusals(self, refusals: Iterable[Refusal]) -> list[Refusal]:
        """The same, of what was refused."""
        return [
            Refusal(self.renamed(r.where), self.renamed(r.reason), r.definition, r.uuid, r.unsafe)
            for r in refusals
        ]


@contextmanager
def _cycle_search() -> Iterator[None]:
    """Clients of services make cycles, and an import has the search for them off."""
    was_on = gc.isenabled()
    gc.enable()
    try:
        yield
    finally:
        if not was_on:
            gc.disable()
