"""One sample's attention of Qwen-Image-2.1 in SGLang, as workloads of the block-causal family."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kclab.capture.adapters import Sighting, Uncaptured
from kclab.capture.adapters.torch_gemm import TAGS

if TYPE_CHECKING:
    from kclab.capture.context import Step
    from kclab.capture.tap import Tap

ATTENTION = "QwenImage21Attention"
FAMILY = "prefix_cached_block_causal"
NOTE = (
    "Tensors after normalisation and RoPE; the engine's calls for each segment of the prompt "
    "joined into one, with the same visibility."
)

Segments = list[tuple[int, int, bool]]


@dataclass(slots=True)
class Sample:
    """One sample's attention in the first block."""

    tap: Tap
    step: Step
    attention: Any
    segments: Segments
    """(start, end, is image) of each part of the prompt."""
    index: int
    padded: bool
    """Whether rows of padding come before the prefix."""
    devices: int
    """Over how many the tokens are split."""
    queries: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def of_prompt(self, run: Callable[[], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One segment's attention; all [1, S, H, D], the keys from the first segment on."""
        self.queries.append(q)
        pending = None
        if len(self.queries) == len(self.segments):
            query, none = torch.cat(self.queries, 1), k[:, :0]
            pending = self._begin(query, (none, none), (k, v), self._image_ids(False))
        output = run()
        self.outputs.append(output)
        self.tap.finish(pending, lambda: {"O": torch.cat(self.outputs, 1)})
        return output

    def of_image(
        self,
        run: Callable[[], Tensor],
        q: Tensor,
        prefix: tuple[Tensor, Tensor],
        current: tuple[Tensor, Tensor],
        padding: int = 0,
    ) -> Tensor:
        """The attention of the image being made; `padding` rows of the prefix are not there."""
        ids = self._image_ids(True, current[0].shape[1], padding)
        pending = self._begin(q, prefix, current, ids, padding)
        output = run()
        self.tap.finish(pending, lambda: {"O": output})
        return output

    def _begin(
        self,
        q: Tensor,
        prefix: tuple[Tensor, Tensor],
        current: tuple[Tensor, Tensor],
        image_ids: list[int],
        padding: int = 0,
    ) -> Any:
        seen = self.tap.sight(FAMILY, lambda: self._see(q, prefix, current, image_ids, padding))
        return None if seen is None else self.tap.begin(seen, self.step)

    def _see(
        self,
        q: Tensor,
        prefix: tuple[Tensor, Tensor],
        current: tuple[Tensor, Tensor],
        image_ids: list[int],
        padding: int,
    ) -> Sighting | Uncaptured:
        tokens = prefix[0].shape[1] + current[0].shape[1]
        if self.devices > 1:
            return Uncaptured(FAMILY, "tokens split over several devices")
        if q.dtype not in TAGS:
            return Uncaptured(FAMILY, f"dtype {str(q.dtype).removeprefix('torch.')}")
        if len(image_ids) != tokens:
            return Uncaptured(FAMILY, "padded prefix without a mask of its keys")
        valid = torch.ones(q.shape[0], tokens, dtype=torch.bool, device=q.device)
        valid[:, :padding] = False
        return Sighting(
            family=FAMILY,
            sizes={
                "h": q.shape[2],
                "d": q.shape[3],
                "dtype": TAGS[q.dtype],
                "prefix": prefix[0].shape[1] > 0,
            },
            inputs={
                "Q": q,
                "K_current": current[0],
                "V_current": current[1],
                "K_prefix": prefix[0],
                "V_prefix": prefix[1],
                "image_ids": torch.tensor(image_ids, dtype=torch.int32, device=q.device),
                "key_valid": valid,
                "sm_scale": 1 / math.sqrt(q.shape[3]),
            },
            outputs=lambda output: {"O": output},
            operation=f"{ATTENTION}.attend_sample",
            variant=f"sample_{self.index}",
            receipt={"prefix_segments": self.segments, "sample": self.index, "adapter": NOTE},
        )

    def _image_ids(self, with_image: bool, tokens: int = 0, padding: int = 0) -> list[int]:
        """-1 for text, one id an image of the prompt, the next for the image being made."""
        ids, images = [-1] * padding, 0
        for start, end, is_image in self.segments:
            ids += [images if is_image else -1] * (end - start)
            images += is_image
        return ids + [images] * tokens if with_image else ids
