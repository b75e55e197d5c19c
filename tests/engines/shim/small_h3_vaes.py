"""MiniMax-H3's two decoders at a size that a small machine holds.

SGLang writes their sizes into the constructors instead of reading them from the checkpoint: 2.4
billion parameters of a video decoder, kept in float32, 10 GiB. Their code is SGLang's own; only the
numbers are smaller. What is captured, the transformer, takes its sizes from its checkpoint.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "sglang.multimodal_gen.runtime.models.vaes.minimax_h3"
VIDEO: Mapping[str, Any] = {
    "ch": 32,
    "ch_mult": [1, 1, 1, 1, 1, 1],
    "num_res_blocks": 1,
    "vit_decoder_kwargs": {"heads": 1, "num_layers": 2},
}
AUDIO: Mapping[str, Any] = {"encoder_dim": 4, "latent_dim": 64, "decoder_dim": 128}


class SmallVaes:
    """Shrinks the decoders as soon as their module is imported; finds nothing itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_shrink(spec.loader.exec_module)
        return spec


def _then_shrink(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        for base, sizes in ((module.AutoencoderKLLegacy, VIDEO), (module.DacAudioVAE, AUDIO)):
            base.__init__ = _smaller(base.__init__, sizes)

    return exec_module


def _smaller(construct: Callable[..., None], sizes: Mapping[str, Any]) -> Callable[..., None]:
    @functools.wraps(construct)
    def __init__(self: object, **arguments: Any) -> None:
        for name, size in sizes.items():
            old = arguments[name]
            arguments[name] = {**old, **size} if isinstance(old, dict) else size
        construct(self, **arguments)

    return __init__
