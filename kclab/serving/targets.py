"""Whether the installed SGLang has what each adapter wraps in it.

The adapters themselves are asked: each attaches to a stand-in for the tap, which shows it the
release's sources (`kclab.serving.release`) in the place of its modules and only writes down what is
to be wrapped.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kclab.core.environment import package_version
from kclab.core.errors import EnvironmentLacking
from kclab.core.machine import Finding, State
from kclab.serving.release import Imported, Release

ENGINE = "sglang"


class Survey:
    """In the tap's place while an adapter attaches: finds its targets, and changes nothing."""

    def __init__(self, release: Release):
        self._release = release
        # A schedule, so that an adapter says what it would need to keep it.
        self.plan = SimpleNamespace(provenance={"sampling_sigmas": [1.0]})
        self.found: list[str] = []
        """What is there: `package.module.Class.method`."""
        self.lacking: list[str] = []
        """What is not."""

    def require(self, adapter: Any) -> None:
        """Look for an adapter's roots and for all that it wraps."""
        for root in adapter.roots:
            module, _, name = root.rpartition(".")
            if root.startswith(f"{self._release.name}."):
                source = self._release.module(module)
                there = source is not None and hasattr(source, name)
                (self.found if there else self.lacking).append(root)
        adapter.attach(self)

    def when_imported(self, module: str, then: Callable[[Any], None]) -> None:
        """As the tap's, with the module's source; other programs' modules do not matter here."""
        if not module.startswith(f"{self._release.name}."):
            return
        source = self._release.module(module)
        if source is None:
            self.lacking.append(module)
            return
        try:
            then(source)
        except EnvironmentLacking as error:
            self.lacking.append(str(error).partition(" is not in this release")[0])

    def wrap(self, owner: Any, name: str, make: object) -> None:
        """As the tap's, but only looked for."""
        if isinstance(owner, Imported):
            owner = owner.resolved()
        target = f"{_name_of(owner)}.{name}"
        if getattr(owner, name, None) is None:
            raise EnvironmentLacking(target)
        if target.startswith(f"{self._release.name}."):
            self.found.append(target)


def _name_of(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{getattr(owner, '__module__', '?')}.{getattr(owner, '__qualname__', '?')}"


def engine_adapters() -> list[Any]:
    """The adapters that know models of the engine: by their roots."""
    from kclab.capture.adapters import GROUP, load_adapters

    names = sorted(point.name for point in entry_points(group=GROUP))
    return [a for a in load_adapters(names) if any(r.startswith(f"{ENGINE}.") for r in a.roots)]


def engine_findings() -> Iterator[Finding]:
    """SGLang's version, and for each adapter whether all of its targets are there."""
    version = package_version(ENGINE)
    root = engine_folder()
    if version is None or root is None:
        advice = "pip install 'kclab[sglang]', in an environment of its own"
        yield Finding(ENGINE, "release", State.ABSENT, "not installed here", advice)
        return
    yield Finding(ENGINE, "release", State.OK, f"{version}, {root}")
    release = Release(ENGINE, root)
    for adapter in engine_adapters():
        yield _adapter_finding(release, version, adapter)


def _adapter_finding(release: Release, version: str, adapter: Any) -> Finding:
    survey = Survey(release)
    survey.require(adapter)
    if survey.lacking:
        found = f"{version} lacks {', '.join(survey.lacking)}"
        advice = "install a release that kclab knows: sglang>=0.5.23,<0.6"
        return Finding(ENGINE, adapter.name, State.BROKEN, found, advice)
    return Finding(ENGINE, adapter.name, State.OK, f"all {len(survey.found)} targets are there")


def engine_folder() -> Path | None:
    """Where the engine's package lies; None where it is not installed."""
    spec = importlib.util.find_spec(ENGINE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None
