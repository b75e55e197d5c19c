"""An engine's release as its sources show it: modules with the names that they define.

Sources are read, not imported: importing SGLang takes many seconds, and much of it needs a GPU.
Modules and classes stand in for the real ones as far as an adapter asks: by `getattr`, `hasattr`
and `vars`. What a name is bound to is not known; only whether there is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


class Release:
    """The sources of one installed engine."""

    def __init__(self, name: str, root: Path):
        self.name = name
        """The package: `sglang`."""
        self._root = root
        self.module = cache(self._module)
        """The module with a dotted name; None where the release has no source of it."""

    def _module(self, name: str) -> ModuleType | None:
        parts = name.split(".")
        if parts[0] != self.name:
            return None
        place = self._root.joinpath(*parts[1:])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                made = ModuleType(name)
                made.__package__ = name if file.stem == "__init__" else name.rpartition(".")[0]
                tree = ast.parse(file.read_text(encoding="utf-8"))
                self._define(made, vars(made), tree.body)
                return made
        return None

    def _define(self, module: ModuleType, names: dict[str, Any], body: list[ast.stmt]) -> None:
        """Bind what the statements define, those of `if` and `try` too."""
        for node in _flat(body):
            if isinstance(node, ast.ClassDef):
                names[node.name] = self._class(module, names, node)
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(module, node)
                for alias in node.names:
                    names[alias.asname or alias.name] = Imported(self, source, alias.name)
            else:
                names.update((name, Something()) for name in _bound(node))

    def _class(self, module: ModuleType, names: dict[str, Any], node: ast.ClassDef) -> type:
        members: dict[str, Any] = {"__module__": module.__name__}
        for base in node.bases:
            known = names.get(base.id) if isinstance(base, ast.Name) else None
            known = known.resolved() if isinstance(known, Imported) else known
            if isinstance(known, type):
                members = {n: getattr(known, n) for n in dir(known) if n not in _OWN} | members
        self._define(module, members, node.body)
        return type(node.name, (), members)


_OWN = frozenset(dir(type("Empty", (), {})))


class Something:
    """What a name is bound to that nobody looks into; it has every attribute."""

    def __getattr__(self, name: str) -> Something:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Imported:
    """A name that a module takes from another one: looked up when it is asked for."""

    def __init__(self, release: Release, module: str, name: str):
        self._where = (release, module, name)

    def resolved(self) -> Any:
        """What the other module has; `Something` where that is not the engine's own."""
        release, module, name = self._where
        source = release.module(module)
        if source is None:
            return release.module(f"{module}.{name}") or Something()
        found = getattr(source, name, None) or release.module(f"{module}.{name}")
        return found.resolved() if isinstance(found, Imported) else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.resolved(), name)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            handlers = node.handlers if isinstance(node, ast.Try) else []
            inner = [*node.body, *node.orelse, *(s for h in handlers for s in h.body)]
            yield from _flat(inner)
        else:
            yield node


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement binds, other than by class or `from`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _absolute(module: ModuleType, node: ast.ImportFrom) -> str:
    """The module that a `from … import` names."""
    package = (module.__package__ or "").split(".")
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])
