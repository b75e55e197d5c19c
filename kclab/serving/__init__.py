"""Start a serving engine, send it complete requests, and capture what its workers compute.

`capture_serve` takes a `ServeOptions` and returns a `ServeSummary`; names load their modules only
when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclab.serving.options import ServeOptions
    from kclab.serving.service import ServeSummary, capture_serve

__all__ = ["ServeOptions", "ServeSummary", "capture_serve"]

_HOMES = {"ServeOptions": "options"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'service')}"), name)
