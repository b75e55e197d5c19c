"""The `torch` adapter: matrix products and scaled-dot-product attention of any program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from kclab.capture.adapters import Handler
from kclab.capture.adapters.torch_attention import ATTENTION_HANDLERS, watch_attention
from kclab.capture.adapters.torch_gemm import GEMM_HANDLERS

if TYPE_CHECKING:
    from kclab.capture.tap import Tap


class TorchAdapter:
    """`linear`, `mm`, `matmul`, `@`, `addmm`, and attention, however they are called."""

    name = "torch"
    families: ClassVar[tuple[str, ...]] = ("dense_gemm", "sdpa")
    roots: ClassVar[tuple[str, ...]] = ()
    handlers: ClassVar[Mapping[str, Handler]] = {**GEMM_HANDLERS, **ATTENTION_HANDLERS}

    def attach(self, tap: Tap) -> None:
        """Watch `functional.scaled_dot_product_attention`; all else comes from the handlers."""
        watch_attention(tap)
