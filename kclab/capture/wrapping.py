"""Putting a wrapper in the place of a function or method, and giving it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kclab.core.errors import EnvironmentLacking

MARK = "_kclab_wrapped"
"""On a function that was put in another's place."""


def put_wrapper(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None] | None:
    """Put `make(original)` in the place of `owner.name`; what undoes it, None where it is there.

    Raises EnvironmentLacking naming the target where this release has none.
    """
    original = getattr(owner, name, None)
    if original is None:
        raise EnvironmentLacking(
            f"{getattr(owner, '__qualname__', owner.__name__)}.{name} is not in this release, "
            "and capture needs to wrap it."
        )
    if getattr(original, MARK, False):
        return None
    wrapper = make(original)
    setattr(wrapper, MARK, True)
    held = vars(owner).get(name)
    setattr(owner, name, staticmethod(wrapper) if isinstance(held, staticmethod) else wrapper)
    return lambda: delattr(owner, name) if held is None else setattr(owner, name, held)
