"""Run captured workloads through their references and compare every output element.

`replay` judges captures of a store, `replay_root` a dataset folder in place; both take a
`Selection` and `Options` and return a `ReplaySummary`. Worker processes import this package too,
so names load their modules only when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclab.replay.recorder import Progress
    from kclab.replay.selection import Selection
    from kclab.replay.service import Options, replay, replay_root, untrusted
    from kclab.replay.summary import DefinitionTally, ReplaySummary

__all__ = [
    "DefinitionTally",
    "Options",
    "Progress",
    "ReplaySummary",
    "Selection",
    "replay",
    "replay_root",
    "untrusted",
]

_HOMES = {
    "DefinitionTally": "summary",
    "Progress": "recorder",
    "ReplaySummary": "summary",
    "Selection": "selection",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'service')}"), name)
