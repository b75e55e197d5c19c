"""Root classes: a call of one is a step.

The class itself is changed, `__call__` and `forward` both, so that `model(x)`, `model.forward(x)`,
`model.compile()` and forwards that a library patches onto an instance all count, once each. A
class is found when it is defined: through `nn.Module.__init_subclass__`, or among the subclasses
that exist already. Calls of any other module cost nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

RunStep = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Run `call(*args, **kwargs)` as a step of this root."""

ENTRIES = ("__call__", "forward")


class Roots:
    """The classes whose calls are steps, changed while this is installed."""

    def __init__(self, names: Sequence[str], run_step: RunStep):
        self.names = tuple(names)
        """`package.module.Class`, or bare class names."""
        self.found: list[type[nn.Module]] = []
        self._run_step = run_step
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Change the classes that exist, and those defined from now on."""
        self._on_definition()
        for cls in _subclasses(nn.Module):
            self.consider(cls)
        self._on_compiled()

    def remove(self) -> None:
        """Give every class back what it had."""
        while self._undo:
            self._undo.pop()()
        self.found.clear()

    def consider(self, cls: type[nn.Module]) -> None:
        """Make `cls` a root if its name is one of a root."""
        if cls in self.found or not any(_means(name, cls) for name in self.names):
            return
        self.found.append(cls)
        for name in ENTRIES:
            self._replace(cls, name, self._entry(getattr(cls, name)))

    def is_root(self, module: object) -> bool:
        """Whether a module, or what a compiled or scripted one was made from, is a root."""
        origin = getattr(module, "_orig_mod", module)
        if isinstance(origin, tuple(self.found)):
            return True
        scripted = getattr(module, "original_name", None)
        return scripted is not None and any(n.split(".")[-1] == scripted for n in self.names)

    def _entry(self, method: Callable[..., Any]) -> Callable[..., Any]:
        run_step = self._run_step

        @functools.wraps(method)
        def entry(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # dynamo reads this as a constant, and then as a plain call of the method.
            if torch.compiler.is_compiling():
                return method(self, *args, **kwargs)
            return run_step(self, functools.partial(method, self), args, kwargs)

        return entry

    def _replace(self, cls: type, name: str, value: Any) -> None:
        own = cls.__dict__.get(name)
        setattr(cls, name, value)

        def undo() -> None:
            if own is None:
                delattr(cls, name)
            else:
                setattr(cls, name, own)

        self._undo.append(undo)

    def _on_definition(self) -> None:
        consider = self.consider
        own = nn.Module.__dict__.get("__init_subclass__")
        inherited = own.__func__ if own is not None else _init_plainly

        def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
            inherited(cls, **kwargs)
            consider(cls)

        self._replace(nn.Module, "__init_subclass__", classmethod(init_subclass))

    def _on_compiled(self) -> None:
        """Steps of `torch.compile(model)` and `torch.jit.script(model)` begin at their wrappers."""
        self._replace(
            torch.jit.ScriptModule, "__call__", self._wrapper_entry(torch.jit.ScriptModule)
        )
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is not None:
            self._replace(
                dynamo.OptimizedModule, "__call__", self._wrapper_entry(dynamo.OptimizedModule)
            )

    def _wrapper_entry(self, cls: type[nn.Module]) -> Callable[..., Any]:
        method, is_root, run_step = cls.__call__, self.is_root, self._run_step

        @functools.wraps(method)
        def entry(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not is_root(self):
                return method(self, *args, **kwargs)
            return run_step(self, functools.partial(method, self), args, kwargs)

        return entry


def _means(name: str, cls: type) -> bool:
    """Whether a root's name is this class's: bare, by its module, or by a package that has it."""
    module, _, bare = name.rpartition(".")
    return bare == cls.__qualname__ and f"{cls.__module__}.".startswith(f"{module}." * bool(module))


def _init_plainly(cls: type[Any], **kwargs: Any) -> None:
    super(nn.Module, cls).__init_subclass__(**kwargs)


def _subclasses(cls: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
