"""Python imports this in every process that `kclab capture run` starts (PYTHONPATH comes first).

It costs next to nothing until the process imports torch; then capture is installed. Processes that
never import torch (helpers, resource trackers) are left alone. The sitecustomize that this file
hides, if there is one, runs as it would have. Only the standard library is used here: kclab itself
may be what is missing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` would cost every helper process milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

PLAN = os.environ.get("KCLAB_CAPTURE_PLAN")
HERE = os.path.realpath(__file__).rpartition(os.sep)[0]


class TorchImport:
    """A meta path finder that finds nothing itself: it installs capture once torch is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """torch's own spec, its loader followed by `install`."""
        if name != "torch":
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _follow(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            vars(loader).pop("exec_module", None)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            install()

        loader.exec_module = exec_module


def install() -> None:
    """Install capture in this process; a failure is reported to the run, which then fails."""
    try:
        from kclab.capture.session import start_from_environment

        start_from_environment()
    except BaseException as error:
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "kclab":
            message = f"kclab is not installed for {sys.executable}: {error}"
        else:
            message = f"capture could not be installed: {type(error).__name__}: {error}"
        report(message)


def report(message: str) -> None:
    """Leave word of the exception in hand in the run's control folder, and on stderr."""
    import json
    import socket
    import time
    import traceback
    from pathlib import Path

    process = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns() // 1000}"
    facts = {"process": process, "message": message, "fatal": True}
    folder = Path(PLAN or "").parent / "failures"
    temporary = folder / f".{process.replace(':', '-')}"
    try:
        text = json.dumps({**facts, "traceback": traceback.format_exc()})
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / temporary.name[1:])
    except OSError as error:
        message = f"{message} (and {folder} cannot be written: {error})"
    sys.stderr.write(f"kclab: process {os.getpid()}: {message}\n")


def run_hidden() -> None:
    """Run the sitecustomize that this one hides: the next on sys.path, and only that."""
    import importlib.machinery
    import importlib.util

    others = [entry for entry in sys.path if os.path.realpath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if PLAN:
    if "torch" in sys.modules:
        install()
    elif not any(type(finder).__name__ == "TorchImport" for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchImport())
run_hidden()
