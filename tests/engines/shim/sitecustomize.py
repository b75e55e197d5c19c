"""What SGLang's Python lacks on a CPU, put there before anything imports it.

PyPI's torchvision is linked against CUDA, so its library does not load beside a CPU build of torch,
and importing it fails where it registers fake kernels for operators that nobody declared. Nothing
here calls them; declaring them is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from small_h3_vaes import SmallVaes

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
DECLARED = []
"""Keeps the library alive: its operators vanish with it."""


class TorchvisionImport:
    """Declares torchvision's operators when it is about to be imported; finds nothing itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare()
        return None


def declare() -> None:
    import torch

    if torch.version.cuda is None:  # else torchvision's own library loads, and declares them
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + BOXES)
        DECLARED.append(library)


sys.meta_path[:0] = [TorchvisionImport(), SmallVaes()]
