"""Which module made a call: found by walking the Python frames below it.

Module hooks would tell too, but engines choose other kernels for hooked modules; and a direct
`module.forward(x)` passes hooks by. Frames cost nothing until a call is captured.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

READS_LOCALS = "locals"
"""Reading another frame's variables refreshes what its own `locals()` returned (before 3.13)."""


class ModuleNames:
    """Names of the modules of one step, from its root."""

    def __init__(self, root: object = None):
        self._root = root if isinstance(root, nn.Module) else None
        self._names: dict[int, str] = {}
        self._known: list[nn.Module] = []
        """Keeps the named modules alive, so that no id is used twice while this lives."""
        if self._root is not None:
            self._learn(self._root)

    def _learn(self, root: nn.Module) -> None:
        for name, module in root.named_modules():
            self._names.setdefault(id(module), name or type(root).__name__)
            self._known.append(module)

    def path(self) -> str | None:
        """The path of the innermost module on this thread's stack, as named by the root.

        Without a root it is named by the outermost module of the stack. None outside any module.
        """
        stack = _modules_on_stack(sys._getframe(1))
        for module in stack:
            if id(module) in self._names:
                return self._names[id(module)]
        if stack and self._root is None:
            self._learn(stack[-1])
            return self._names.get(id(stack[0]), type(stack[0]).__name__)
        return None


def _modules_on_stack(frame: FrameType | None) -> list[nn.Module]:
    """Modules whose methods are running, innermost first."""
    found = []
    while frame is not None:
        module = _module_of(frame)
        if module is not None:
            found.append(module)
        frame = frame.f_back
    return found


def _module_of(frame: FrameType) -> nn.Module | None:
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self" or READS_LOCALS in code.co_names:
        return None
    value = frame.f_locals.get("self")
    return value if isinstance(value, nn.Module) else None
