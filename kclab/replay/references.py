"""Compiling a definition's reference into a function, and calling it.

Only trusted sources come here; `kclab.replay` checks before it sends a workload to a worker.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kclab.core.definition import Definition
from kclab.core.errors import KclabError
from kclab.core.memory import is_out_of_memory
from kclab.core.units import counted


class ReferenceBroken(KclabError):
    """A reference that cannot be compiled or did not return; `trace` says where."""

    def __init__(self, message: str, trace: str | None = None, *, memory: bool = False) -> None:
        super().__init__(message)
        self.trace = trace
        self.memory = memory
        """It ran out of memory."""


class WrongOutputs(KclabError):
    """A reference returned something else than its definition's outputs."""


class Reference:
    """A compiled reference."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.file = f"<reference of {definition.name}>"
        source = definition.reference
        # Tracebacks then show the reference's own lines.
        linecache.cache[self.file] = (len(source), None, source.splitlines(True), self.file)
        namespace: dict[str, Any] = {"__name__": definition.name}
        with self._guarded("the reference does not load"):
            exec(compile(source, self.file, "exec"), namespace)
        if not callable(namespace.get("run")):
            raise ReferenceBroken("the reference defines no function run()")
        self.function: Callable[..., Any] = namespace["run"]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The outputs by name; raises ReferenceBroken or WrongOutputs."""
        with self._guarded("the reference raised"), torch.inference_mode():
            returned = self.function(**inputs)
        return _by_name(self.definition, returned)

    def _guarded(self, what: str) -> _Guard:
        return _Guard(what, self.file)


class _Guard:
    """Turns whatever a reference raises, SystemExit included, into ReferenceBroken."""

    def __init__(self, what: str, file: str) -> None:
        self.what, self.file = what, file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        memory = is_out_of_memory(error)
        text = f"out of memory: {_first_line(error)}" if memory else f"{self.what} {_name(error)}"
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(trace)
            if frame.filename == self.file and frame.lineno
        ]
        if isinstance(error, SyntaxError) and error.filename == self.file and error.lineno:
            lines.append(error.lineno)
        if lines:
            text += f" (line {lines[-1]} of the reference)"
        full = "".join(traceback.format_exception(kind, error, trace))
        raise ReferenceBroken(text, full, memory=memory) from error


def _name(error: BaseException) -> str:
    line = _first_line(error)
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _by_name(definition: Definition, returned: Any) -> dict[str, Tensor]:
    names = list(definition.outputs)
    if isinstance(returned, Mapping):
        if set(returned) != set(names):
            raise WrongOutputs(
                f"the reference returned {', '.join(map(str, returned)) or 'nothing'};"
                f" the definition's outputs are {', '.join(names)}"
            )
        values = [returned[name] for name in names]
    else:
        values = list(returned) if isinstance(returned, list | tuple) else [returned]
    if len(values) != len(names):
        raise WrongOutputs(
            f"the reference returned {counted(len(values), 'output')}, the definition has"
            f" {len(names)}: {', '.join(names)}"
        )
    return {
        name: _tensor(name, value, definition.outputs[name].dtype)
        for name, value in zip(names, values, strict=True)
    }


def _tensor(name: str, value: Any, dtype: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float):
        return torch.tensor(value, dtype=getattr(torch, dtype))
    raise WrongOutputs(f"the reference returned {type(value).__name__} for {name}, no tensor")
