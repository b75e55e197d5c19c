"""The FC2 lab: every cuBLASLt algorithm for one GEMM, judged byte for byte and remembered.

`with kclab.fc2.apply():` makes running code use the stored winners. `capture_h3` takes boundaries
out of a running MiniMax-H3; `block_gate` and `trajectory_gate` try a candidate inside it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclab.fc2.gate_block import block_gate
    from kclab.fc2.gate_trajectory import trajectory_gate
    from kclab.fc2.h3_boundary import capture_h3
    from kclab.fc2.substitution import apply

__all__ = ["apply", "block_gate", "capture_h3", "trajectory_gate"]

_MODULES = {
    "apply": "substitution",
    "block_gate": "gate_block",
    "capture_h3": "h3_boundary",
    "trajectory_gate": "gate_trajectory",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: they bring torch, which a command that only looks does not need.
    if name in _MODULES:
        return getattr(import_module(f"kclab.fc2.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
