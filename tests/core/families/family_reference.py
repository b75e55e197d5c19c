"""Running a definition's reference from its text alone, as replay does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kclab.core.definition import Definition


def load_run(definition: Definition, **constants: Any) -> Callable[..., Any]:
    """`run` of the reference, with module constants replaced."""
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(definition.reference, definition.name, "exec"), namespace)
    assert set(constants) <= set(namespace)
    namespace.update(constants)
    run: Callable[..., Any] = namespace["run"]
    return run
