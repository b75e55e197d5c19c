"""The `qwen-image` adapter: Qwen-Image-2.1's attention and matrix products, in both its homes.

This file is about diffusers' transformer; `sglang_qwen_image` is about SGLang's.

Captured is the first block's attention as a whole: queries, keys and values after normalisation and
rotation, the cached prefix apart from the current tokens, and the output before `to_out`. The model
runs it as one attention call for each segment of the prompt and one for the image (or as one
flex attention); their results, side by side, are the operator's output.

The model has three cache modes. Without a cache, and when it fills one (`extract`), all tokens are
current: `…_prefix0`. When it reads the cache (`cached`), only the image's tokens are.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from kclab.capture.adapters import Handler, Sighting, Uncaptured, sglang_qwen_image
from kclab.capture.adapters.torch_gemm import GEMM_HANDLERS, TAGS
from kclab.capture.adapters.watching import remembered, target

if TYPE_CHECKING:
    from kclab.capture.call import Pending
    from kclab.capture.context import Step
    from kclab.capture.tap import Tap

MODULE = "diffusers.models.transformers.transformer_qwenimage21"
MODEL = "QwenImage21Transformer2DModel"
PROCESSORS = ("QwenImage21AttnProcessor", "QwenImage21FlexAttnProcessor")
FAMILY = "prefix_cached_block_causal"
NOTE = (
    "Tensors after normalisation and RoPE; the model's calls for each segment joined into one, "
    "with the same visibility."
)

Segments = list[tuple[int, int, bool]]


@dataclass(slots=True)
class Forward:
    """One forward of the model."""

    model: Any
    image_ids: Tensor | None = None
    """[tokens]: -1 for text, else which image a token is of."""

    def is_first(self, attention: object) -> bool:
        """Whether this is the first block's attention."""
        return self.model.transformer_blocks[0].attn is attention


@dataclass(slots=True)
class Attention:
    """One call of the first block's attention."""

    tap: Tap
    step: Step
    image_ids: Tensor
    arguments: Mapping[str, Any]
    """Of the attention processor, by name."""
    operation: str
    pending: Pending | None = None
    outputs: list[Tensor] = field(default_factory=list)
    """[B, S, H, D] of each attention call so far."""

    def begin(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Capture the inputs; all [B, S, H, D], the keys and values with their prefix."""
        seen = self.tap.sight(FAMILY, lambda: self._sighting(query, key, value))
        if seen is not None:
            self.pending = self.tap.begin(seen, self.step)

    def finish(self) -> None:
        """Capture the output: rows beyond the queries are a kernel's padding."""
        if self.pending is not None:
            rows = self.pending.call.inputs["Q"].shape[1]  # type: ignore[union-attr]  # a tensor
            self.tap.finish(self.pending, lambda: {"O": torch.cat(self.outputs, 1)[:, :rows]})

    def _sighting(self, query: Tensor, key: Tensor, value: Tensor) -> Sighting | Uncaptured:
        tokens, current = key.shape[1], query.shape[1]
        prefix = tokens - current
        key_valid = self._key_valid(query.shape[0], tokens)
        if query.dtype not in TAGS:
            return Uncaptured(FAMILY, f"dtype {str(query.dtype).removeprefix('torch.')}")
        if self.image_ids.shape[0] != tokens:
            return Uncaptured(FAMILY, "tokens split over several devices")
        if key_valid is None:
            return Uncaptured(FAMILY, "padded prefix without a mask of its keys")
        return Sighting(
            family=FAMILY,
            sizes={
                "h": query.shape[2],
                "d": query.shape[3],
                "dtype": TAGS[query.dtype],
                "prefix": prefix > 0,
            },
            inputs={
                "Q": query,
                "K_current": key[:, prefix:],
                "V_current": value[:, prefix:],
                "K_prefix": key[:, :prefix],
                "V_prefix": value[:, :prefix],
                "image_ids": self.image_ids.to(torch.int32),
                "key_valid": key_valid,
                "sm_scale": 1 / math.sqrt(query.shape[3]),
            },
            outputs=lambda output: {"O": output},
            operation=self.operation,
            receipt={
                "prefix_segments": segments(self.image_ids),
                "cache_mode": self.arguments.get("kv_cache_mode"),
                "adapter": NOTE,
            },
        )

    def _key_valid(self, batch: int, tokens: int) -> Tensor | None:
        """[B, tokens] bool; None where a mask is there that does not tell."""
        mask = self.arguments.get("key_valid")
        if mask is None and self.arguments.get("kv_cache_mode") == "cached":
            mask = self.arguments.get("attention_mask")
        if mask is None:
            return torch.ones(batch, tokens, dtype=torch.bool, device=self.image_ids.device)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            return None
        if mask.numel() != batch * tokens:
            return None
        return mask.reshape(batch, tokens)


def segments(image_ids: Tensor) -> Segments:
    """(start, end, is image) of each run of text or one image, the last image left out."""
    ids = image_ids.tolist()
    found: Segments = []
    start = 0
    for index in range(1, len(ids) + 1):
        if index == len(ids) or ids[index] != ids[start]:
            found.append((start, index, ids[start] >= 0))
            start = index
    return found[:-1]


_FORWARD: ContextVar[Forward | None] = ContextVar("kclab_qwen_forward", default=None)
_ATTENTION: ContextVar[Attention | None] = ContextVar("kclab_qwen_attention", default=None)


class QwenImageAdapter:
    """Block 0's attention with and without prefix, and dense GEMMs; a step is a denoising step."""

    name = "qwen-image"
    families: ClassVar[tuple[str, ...]] = (FAMILY, "dense_gemm")
    roots: ClassVar[tuple[str, ...]] = (
        f"{MODULE}.{MODEL}",
        f"{sglang_qwen_image.MODULE}.{sglang_qwen_image.MODEL}",
    )
    handlers: ClassVar[Mapping[str, Handler]] = GEMM_HANDLERS

    def attach(self, tap: Tap) -> None:
        """Wrap the model's functions as soon as diffusers' or SGLang's module is there."""
        tap.when_imported(MODULE, lambda module: instrument(module, tap))
        served = sglang_qwen_image
        tap.when_imported(served.MODULE, lambda module: served.instrument(module, tap))
        tap.when_imported(served.CONFIG_MODULE, lambda module: served.keep_schedule(module, tap))


def instrument(module: Any, tap: Tap) -> None:
    """Wrap one release's functions; EnvironmentLacking names one that it lacks."""
    model = target(module, MODEL)
    processors = [target(module, name) for name in PROCESSORS]
    tap.wrap(model, "build_token_metadata", _watched_metadata)
    tap.wrap(model, "forward", lambda method: remembered(method, _FORWARD, Forward))
    tap.wrap(module, "_qwenimage21_prepare_qkv", _watched_projection)
    tap.wrap(module, "dispatch_attention_fn", _watched_attention)
    for processor in processors:
        tap.wrap(processor, "__call__", lambda method: _watched_processor(method, tap))


def _watched_metadata(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def build_token_metadata(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            forward = _FORWARD.get()
            if forward is not None:
                forward.image_ids = result[0]
        return result

    return build_token_metadata


def _watched_projection(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def prepare_qkv(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            attention = _ATTENTION.get()
            if attention is not None:
                attention.begin(*result[:3])
        return result

    return prepare_qkv


def _watched_attention(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def dispatch_attention_fn(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            attention = _ATTENTION.get()
            if attention is not None:
                attention.outputs.append(result)
        return result

    return dispatch_attention_fn


def _watched_processor(method: Callable[..., Any], tap: Tap) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, attn: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, attn, *args, **kwargs)
        forward, step = _FORWARD.get(), tap.step()
        if forward is None or step is None or not forward.is_first(attn):
            return method(self, attn, *args, **kwargs)
        assert forward.image_ids is not None, "the model labels its tokens before it attends"
        attention = Attention(
            tap,
            step,
            forward.image_ids,
            signature.bind(self, attn, *args, **kwargs).arguments,
            type(self).__name__,
        )
        token = _ATTENTION.set(attention)
        try:
            result = method(self, attn, *args, **kwargs)
        except BaseException:
            tap.abandon(attention.pending)
            raise
        finally:
            _ATTENTION.reset(token)
        attention.finish()
        return result

    return call
