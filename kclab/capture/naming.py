"""From what an adapter saw, a family and its sizes, to the definition that it is a call of."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from kclab.capture.adapters import Sighting
from kclab.capture.plan import CapturePlan
from kclab.core.catalog import Catalog
from kclab.core.definition import Definition
from kclab.core.errors import BadUsage
from kclab.core.families import FAMILIES


class Definitions:
    """Which definition a sighting belongs to: shipped, the user's, or made for its sizes."""

    def __init__(self, plan: CapturePlan, catalog: Catalog):
        self._plan = plan
        self._catalog = catalog
        self._found: dict[Any, tuple[str | None, Definition | None]] = {}

    def of(self, sighting: Sighting) -> tuple[str | None, Definition | None]:
        """(name, definition); no definition if none has this name, no name if none is selected."""
        key = (sighting.family, *sorted(sighting.sizes.items()))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(sighting.family, sighting.sizes)
        return found

    def _find(self, family: str, sizes: Mapping[str, Any]) -> tuple[str | None, Definition | None]:
        if family not in FAMILIES:
            return (family, self._catalog.get(family)) if self._selects(family) else (None, None)
        try:
            made = FAMILIES[family].make(**sizes)
        except BadUsage as error:
            return f"{family}: {error}", None
        if not self._selects(made.name):
            return None, None
        known = self._catalog.get(made.name)
        if known is None and self._plan.define_missing:
            known = made
        return made.name, known

    def _selects(self, name: str) -> bool:
        globs = self._plan.definitions
        return not globs or any(fnmatchcase(name, glob) for glob in globs)
