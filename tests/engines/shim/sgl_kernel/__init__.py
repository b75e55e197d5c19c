"""Stands in for SGLang's compiled kernels, which exist for GPUs only.

Any name can be imported from it; what is not in `cpu_ops` raises when it is called. So a kernel
that SGLang calls here is this stand-in's, and all around it is SGLang's own.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
__version__ = "0.0.0+cpu"


def missing(name: str) -> Callable[..., Any]:
    """A function for an operator that has no CPU version here."""

    def operator(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: the CPU stand-in of sgl_kernel does not have it")

    operator.__name__ = name.rpartition(".")[2]
    return operator


class Blank(ModuleType):
    """A submodule of which every name is a missing operator."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{self.__name__}.{name}")


class BlankModules:
    """Finds every submodule that is no file here."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parent, _, own = name.partition(".")
        if parent != __name__ or (HERE / f"{own}.py").exists():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Blank(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return missing(f"{__name__}.{name}")


sys.meta_path.insert(0, BlankModules())  # type: ignore[arg-type]

from sgl_kernel.cpu_ops import (  # noqa: E402  # blank modules come first
    assign_req_to_token_pool_cpu as assign_req_to_token_pool_cpu,
)
from sgl_kernel.cpu_ops import register  # noqa: E402

register()
