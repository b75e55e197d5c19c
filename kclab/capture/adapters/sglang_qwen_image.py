"""Block-causal attention of Qwen-Image-2.1 as SGLang runs it, for the `qwen-image` adapter.

SGLang attends once for each segment of the prompt (`local_attn`, only where its keys are not cached
yet), and once for the image being made (`target_attn`). The segments' calls, side by side, are one
workload without a prefix (`…_prefix0`); the image's call is one with the prompt as its prefix.
Captured is the first block's attention of each sample: after normalisation and rotation. This file
finds those calls; `sglang_qwen_sample` says what they are as workloads.

`attend_sample` had three signatures: 0.5.21 is given the segments, 0.5.22 the layout that has them
and rows of padding before the prefix, 0.5.23 the packed buffer too. Its arguments are read by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kclab.capture.adapters.sglang_qwen_sample import ATTENTION, FAMILY, Sample
from kclab.capture.adapters.watching import bound, is_graph_capture, remembered, target
from kclab.core.errors import EnvironmentLacking

if TYPE_CHECKING:
    from kclab.capture.context import Step
    from kclab.capture.tap import Tap

MODULE = "sglang.multimodal_gen.runtime.models.dits.qwen_image21"
MODEL = "QwenImage21Transformer2DModel"
CONFIG_MODULE = "sglang.multimodal_gen.configs.pipeline_configs.qwen_image21"
CONFIG = "QwenImage21PipelineConfig"
PADDED = "attend_target"
"""Since 0.5.22: attention that may leave out rows of padding before the prefix."""


@dataclass(slots=True)
class Forward:
    """One forward of the model."""

    model: Any
    samples: int = 0
    """Samples that the first block has attended to so far."""

    def is_first(self, attention: object) -> bool:
        """Whether this is the first block's attention."""
        return self.model.transformer_blocks[0].attn is attention


_FORWARD: ContextVar[Forward | None] = ContextVar("kclab_sglang_qwen_forward", default=None)
_SAMPLE: ContextVar[Sample | None] = ContextVar("kclab_sglang_qwen_sample", default=None)


def instrument(module: Any, tap: Tap) -> None:
    """Wrap one release's methods; EnvironmentLacking names one that it lacks."""
    attention = target(module, ATTENTION)
    local, usp = target(module, "LocalAttention"), target(module, "USPAttention")
    model = target(module, MODEL)
    tap.wrap(model, "forward", lambda method: remembered(method, _FORWARD, Forward))
    tap.wrap(attention, "attend_sample", lambda method: _watched_sample(method, tap, module))
    tap.wrap(local, "forward", _watched_segment)
    tap.wrap(usp, "forward", _watched_joint)
    tap.wrap(usp, "forward_with_replicated_kv_prefix", _watched_parts)
    if hasattr(attention, PADDED):
        tap.wrap(attention, PADDED, _watched_padded)


def _watched_sample(method: Callable[..., Any], tap: Tap, module: Any) -> Callable[..., Any]:
    signature = inspect.signature(method)
    lacking = {"segments", "layout"}.isdisjoint(signature.parameters)
    if lacking:
        raise EnvironmentLacking(
            f"{module.__name__}.{ATTENTION}.attend_sample takes neither segments nor layout in "
            "this release, and capture needs to know which tokens are of an image."
        )

    @functools.wraps(method)
    def attend_sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        forward, step = _FORWARD.get(), tap.step()
        if forward is None or step is None or not forward.is_first(self):
            return method(self, *args, **kwargs)
        if is_graph_capture():
            tap.count(FAMILY, "graph capture")
            return method(self, *args, **kwargs)
        given = bound(signature, (self, *args), kwargs)
        sample = _sample(tap, step, self, given, forward, module)
        forward.samples += 1
        token = _SAMPLE.set(sample)
        try:
            return method(self, *args, **kwargs)
        finally:
            _SAMPLE.reset(token)

    return attend_sample


def _sample(
    tap: Tap, step: Step, attention: Any, given: Mapping[str, Any], forward: Forward, module: Any
) -> Sample:
    layout = given.get("layout")
    segments = given["segments"] if layout is None else layout["segments"]
    return Sample(
        tap,
        step,
        attention,
        [(int(start), int(end), bool(is_image)) for start, end, is_image in segments],
        forward.samples,
        given.get("prefix_pad") is not None,
        int(module.get_sp_world_size()),
    )


def _current(layer: object, name: str) -> Sample | None:
    """The sample whose attention calls its own `layer` just now."""
    sample = None if torch.compiler.is_compiling() else _SAMPLE.get()
    return sample if sample is not None and getattr(sample.attention, name) is layer else None


def _watched_segment(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def forward(self: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sample = _current(self, "local_attn")
        if sample is None:
            return method(self, q, k, v, *args, **kwargs)
        return sample.of_prompt(lambda: method(self, q, k, v, *args, **kwargs), q, k, v)

    return forward


def _watched_joint(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def forward(self: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sample = _current(self, "target_attn")
        if sample is None:
            return method(self, q, k, v, *args, **kwargs)
        rows = k.shape[1] - q.shape[1]
        prefix, current = (k[:, :rows], v[:, :rows]), (k[:, rows:], v[:, rows:])
        return sample.of_image(lambda: method(self, q, k, v, *args, **kwargs), q, prefix, current)

    return forward


def _watched_parts(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def forward_with_replicated_kv_prefix(
        self: Any, q: Tensor, k_prefix: Tensor, v_prefix: Tensor, k_suffix: Tensor, v_suffix: Tensor
    ) -> Tensor:
        def run() -> Tensor:
            # Over several devices it goes through `forward`, which must not count again.
            token = _SAMPLE.set(None)
            try:
                return method(self, q, k_prefix, v_prefix, k_suffix, v_suffix)
            finally:
                _SAMPLE.reset(token)

        sample = _current(self, "target_attn")
        if sample is None:
            return method(self, q, k_prefix, v_prefix, k_suffix, v_suffix)
        return sample.of_image(run, q, (k_prefix, v_prefix), (k_suffix, v_suffix))

    return forward_with_replicated_kv_prefix


def _watched_padded(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def attend_target(self: Any, q: Tensor, k: Tensor, v: Tensor, prefix_pad: Any) -> Tensor:
        sample = None if torch.compiler.is_compiling() else _SAMPLE.get()
        if prefix_pad is None or sample is None or sample.attention is not self:
            return method(self, q, k, v, prefix_pad)
        rows = k.shape[1] - q.shape[1]
        return sample.of_image(
            lambda: method(self, q, k, v, prefix_pad),
            q,
            (k[:, :rows], v[:, :rows]),
            (k[:, rows:], v[:, rows:]),
            int(prefix_pad.get()),
        )

    return attend_target


def keep_schedule(module: Any, tap: Tap) -> None:
    """Let 0.5.21 sample with the checkpoint's own schedule, as later releases do by themselves.

    That release makes a linear one, whatever `sample_sigmas` of model_index.json says.
    """
    config = target(module, CONFIG)
    sigmas = tap.plan.provenance.get("sampling_sigmas")
    if sigmas is None or hasattr(config, "sample_sigmas"):
        return
    schedule = [float(sigma) for sigma in sigmas]

    def with_schedule(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def prepare_sigmas(self: Any, sigmas: Any, num_inference_steps: int) -> Any:
            if sigmas is not None:
                return method(self, sigmas, num_inference_steps)
            if num_inference_steps != len(schedule):
                raise ValueError(
                    f"{num_inference_steps} steps: the checkpoint's schedule has {len(schedule)}."
                )
            return list(schedule)

        return prepare_sigmas

    tap.wrap(config, "prepare_sigmas", with_schedule)
