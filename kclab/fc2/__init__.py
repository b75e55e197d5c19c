"""The FC2 lab: every cuBLASLt algorithm for one GEMM, judged byte for byte and remembered.

`with kclab.fc2.apply():` makes running code use the stored winners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclab.fc2.substitution import apply

__all__ = ["apply"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: it brings torch, which a command that only looks does not need.
    if name == "apply":
        from kclab.fc2.substitution import apply

        return apply
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
