"""Do something to a module as soon as the program has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def when_imported(name: str, then: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Call `then(module)` right after `name` was executed, or now if it was before.

    Returns what gives up waiting. `then` must not raise: it runs inside the program's import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        then(module)
        return lambda: None
    finder = _Waiting(name, then)
    sys.meta_path.insert(0, finder)
    return finder.give_up


class _Waiting(MetaPathFinder):
    """Finds one module as everybody else would, and watches it being executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]):
        self._name = name
        self._then = then

    def give_up(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.give_up()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._then)
        return spec


class _Telling(Loader):
    """A loader that tells when its module has been executed."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]):
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
