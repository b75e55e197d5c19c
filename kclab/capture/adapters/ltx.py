"""The `ltx` adapter: LTX-2 and LTX-2.5 in SGLang, a block's six attentions, gates and GEMMs.

Video and audio attend to themselves, to their prompts and to each other. Each of the six is
captured as scaled-dot-product attention after normalisation and rotation, told apart by its name.
LTX-2.5 multiplies each head's output by a gate before the projection: captured as its own operator,
from the attention's output to what the projection is given, whichever kernel does it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from kclab.capture.adapters import Handler, Sighting, Uncaptured
from kclab.capture.adapters.torch_gemm import GEMM_HANDLERS, TAGS
from kclab.capture.adapters.watching import is_graph_capture, target

if TYPE_CHECKING:
    from kclab.capture.call import Pending
    from kclab.capture.context import Step
    from kclab.capture.tap import Tap

MODULE = "sglang.multimodal_gen.runtime.models.dits.ltx_2"
MODEL = "LTX2VideoTransformer3DModel"
BLOCK = "LTX2TransformerBlock"
ATTENTION = "LTX2Attention"
NAMES = (
    "attn1",
    "attn2",
    "audio_attn1",
    "audio_attn2",
    "audio_to_video_attn",
    "video_to_audio_attn",
)
"""A block's attentions: of video and audio, each to itself and to its prompt, and across."""
LAYERS = ("LocalAttention", "USPAttention")
LINEARS = ("ColumnParallelLinear", "RowParallelLinear")
SDPA, GATE = "sdpa", "head_gate"


@dataclass(slots=True)
class Attention:
    """One call of one of a block's attentions."""

    tap: Tap
    step: Step
    module: Any
    name: str
    devices: int
    """Over how many the video's and audio's tokens are split."""
    perturbed: bool
    """Whether something else than the attention's output is gated."""
    output: Tensor | None = None
    gate: Pending | None = None

    def see(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, alone: bool = True
    ) -> Sighting | Uncaptured:
        """q, k, v [B, S, H, D]; the mask bool [B, keys], or to be added to the scores.

        Of tokens that are split over devices, what a layer computes `alone` is whole: its keys and
        values were there on each, or have been gathered. Others exchange theirs within.
        """
        if self.devices > 1 and not alone:
            return Uncaptured(SDPA, "tokens split over several devices")
        if q.dtype not in TAGS:
            return Uncaptured(SDPA, f"dtype {str(q.dtype).removeprefix('torch.')}")
        kind, given = _mask(mask, q.dtype)
        if kind is None:
            return Uncaptured(SDPA, "mask of another form")
        inputs: dict[str, Any] = {
            **dict(zip("QKV", (x.transpose(1, 2) for x in (q, k, v)), strict=True)),
            "is_causal": False,
            "scale": 1 / math.sqrt(q.shape[3]),
        }
        if given is not None:
            inputs["mask"] = given
        return Sighting(
            family=SDPA,
            sizes={
                "h": q.shape[2],
                "d": q.shape[3],
                "kv": k.shape[2],
                "dtype": TAGS[q.dtype],
                "mask": kind,
            },
            inputs=inputs,
            outputs=lambda result: {"O": _heads(result, q.shape[2]).transpose(1, 2)},
            operation=f"{ATTENTION}.{self.name}",
            variant=self.name,
        )

    def see_gate(self, logits: Tensor) -> Sighting | Uncaptured | None:
        """The gate's logits [B, S, H], once they are computed; None where nothing is gated."""
        if self.output is None:
            return None
        if self.perturbed:
            return Uncaptured(GATE, "perturbed attention")
        x = _heads(self.output, logits.shape[2])
        if x.dtype not in TAGS or logits.dtype != x.dtype:
            return Uncaptured(GATE, f"dtype {str(x.dtype).removeprefix('torch.')}")
        return Sighting(
            family=GATE,
            sizes={"h": x.shape[2], "d": x.shape[3], "dtype": TAGS[x.dtype]},
            inputs={"x": x, "gate_logits": logits},
            outputs=lambda gated: {"y": gated.reshape(x.shape)},
            operation=f"{ATTENTION}.{self.name}",
            variant=self.name,
        )


def _heads(tensor: Tensor, heads: int) -> Tensor:
    """[B, S, H, D], whether the heads are side by side or apart."""
    return tensor if tensor.dim() == 4 else tensor.reshape(*tensor.shape[:2], heads, -1)


def _mask(mask: Tensor | None, dtype: torch.dtype) -> tuple[str | None, Tensor | None]:
    """(the family's kind, four dimensions), as SGLang reads masks; no kind for one it would not.

    Floats are added to the scores, in the queries' dtype; of integers 1 shows a key and 0 hides it.
    """
    if mask is None:
        return "none", None
    if mask.dim() not in (2, 3, 4):
        return None, None
    shape = {2: (mask.shape[0], 1, 1, -1), 3: (mask.shape[0], 1, *mask.shape[1:])}
    mask = mask.reshape(shape.get(mask.dim(), mask.shape))
    if mask.is_floating_point():
        return "float", mask.to(dtype)
    return "bool", mask.bool()


_CURRENT: ContextVar[Attention | None] = ContextVar("kclab_ltx_attention", default=None)
_BLOCK: ContextVar[Any] = ContextVar("kclab_ltx_block", default=None)


class LtxAdapter:
    """Six attentions, head gates, dense GEMMs; a step is one denoising step."""

    name = "ltx"
    families: ClassVar[tuple[str, ...]] = (SDPA, GATE, "dense_gemm")
    roots: ClassVar[tuple[str, ...]] = (f"{MODULE}.{MODEL}",)
    handlers: ClassVar[Mapping[str, Handler]] = GEMM_HANDLERS

    def attach(self, tap: Tap) -> None:
        """Wrap SGLang's methods as soon as the model's module is there."""
        tap.when_imported(MODULE, lambda module: instrument(module, tap))


def instrument(module: Any, tap: Tap) -> None:
    """Wrap one release's methods; EnvironmentLacking names one that it lacks."""
    tap.wrap(target(module, BLOCK), "forward", _watched_block)
    attention = target(module, ATTENTION)
    tap.wrap(attention, "forward", lambda method: _watched_attention(method, tap, module))
    for name in LAYERS:
        tap.wrap(target(module, name), "forward", _watched_layer)
    for name in LINEARS:
        tap.wrap(target(module, name), "forward", _watched_linear)


def _watched_block(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        token = _BLOCK.set(self)
        try:
            return method(self, *args, **kwargs)
        finally:
            _BLOCK.reset(token)

    return forward


def _watched_attention(method: Callable[..., Any], tap: Tap, module: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = None if torch.compiler.is_compiling() else tap.step()
        name = _name(self)
        if step is None or name is None:
            return method(self, *args, **kwargs)
        if is_graph_capture():
            tap.count(SDPA, "graph capture")
            return method(self, *args, **kwargs)
        devices = int(getattr(module, "get_sp_world_size", lambda: 1)())
        perturbed = kwargs.get("perturbation_mask") is not None or bool(kwargs.get("all_perturbed"))
        attention = Attention(tap, step, self, name, devices, perturbed)
        token = _CURRENT.set(attention)
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            tap.abandon(attention.gate)
            raise
        finally:
            _CURRENT.reset(token)

    return forward


def _name(attention: object) -> str | None:
    """Which of the current block's attentions this is."""
    block = _BLOCK.get()
    return next((n for n in NAMES if getattr(block, n, None) is attention), None)


def _current() -> Attention | None:
    return None if torch.compiler.is_compiling() else _CURRENT.get()


def _watched_layer(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        current = _current()
        if current is None or current.module.attn is not self:
            return method(self, q, k, v, *args, **kwargs)
        mask = args[0] if args else kwargs.get("attn_mask")
        alone = _is_alone(self, kwargs)
        seen = current.tap.sight(SDPA, lambda: current.see(q, k, v, mask, alone))
        pending = None if seen is None else current.tap.begin(seen, current.step)
        try:
            output = method(self, q, k, v, *args, **kwargs)
        except BaseException:
            current.tap.abandon(pending)
            raise
        if seen is not None:
            current.tap.finish(pending, lambda: seen.outputs(output))
        current.output = output
        return output

    return forward


def _is_alone(layer: object, kwargs: Mapping[str, Any]) -> bool:
    """Whether this call asks no other device: `LocalAttention`'s, and what is told to skip it."""
    skips = getattr(layer, "skip_sequence_parallel", True)
    return bool(skips or kwargs.get("skip_sequence_parallel_override"))


def _watched_linear(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        current = _current()
        if current is None:
            return method(self, x, *args, **kwargs)
        if current.gate is not None and current.module.to_out[0] is self:
            pending, current.gate = current.gate, None
            shape = pending.call.inputs["x"].shape  # type: ignore[union-attr]  # a tensor
            current.tap.finish(pending, lambda: {"y": x.reshape(shape)})
        result = method(self, x, *args, **kwargs)
        if current.module.to_gate_logits is self:
            seen = current.tap.sight(GATE, lambda: current.see_gate(result[0]))
            current.gate = None if seen is None else current.tap.begin(seen, current.step)
        return result

    return forward
