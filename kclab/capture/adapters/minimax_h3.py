"""The `minimax-h3` adapter: MiniMax-H3 in SGLang, its second feed-forward GEMM and its attention.

FC2 is captured as the boundary that `kclab fc2 sweep` searches. In bfloat16 that is the linear's
own call; in NVFP4 it is the call of comfy-kitchen's GEMM inside it, over operands that are packed
and scaled as the library takes them. Attention is packed: several documents side by side, and each
token sees its whole document. Devices that share the tokens (Ulysses) exchange them for heads
first, so there it is what each then computes, all tokens of its heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from kclab.capture.adapters import Handler, Sighting, Uncaptured
from kclab.capture.adapters.torch_gemm import TAGS
from kclab.capture.adapters.watching import target, watch_calls

if TYPE_CHECKING:
    from kclab.capture.tap import Tap

MODULE = "sglang.multimodal_gen.runtime.models.dits.minimax_h3"
MODEL = "MiniMaxH3DiTModel"
MLP = "MiniMaxH3MLP"
LAYER = "MiniMaxH3Attention"
CORE = "_minimax_h3_attention_core_impl"
BACKENDS = "sglang.multimodal_gen.runtime.layers.attention.backends"
IMPLEMENTATIONS = {"SDPAImpl": f"{BACKENDS}.sdpa", "FlashAttentionImpl": f"{BACKENDS}.flash_attn"}
"""What computes packed attention densely, and where it is."""
PACKED = "forward_varlen"
LINEAR_MODULE = "sglang.multimodal_gen.runtime.layers.linear"
LINEAR = "UnquantizedLinearMethod"
NVFP4_MODULE = "sglang.multimodal_gen.runtime.layers.quantization.comfy_nvfp4"
NVFP4 = "ComfyNvfp4LinearMethod"
NVFP4_GEMM = "scaled_mm_nvfp4"
FC2 = "fc2"
ATTENTION = "ragged_attention"

Arguments = Mapping[str, Any]
Seen = Sighting | Uncaptured | None


@dataclass(slots=True)
class FeedForward:
    """One call of an MLP."""

    fc2: Any
    rows: int
    """Tokens."""


_FEED_FORWARD: ContextVar[FeedForward | None] = ContextVar("kclab_h3_mlp", default=None)
_IN_FC2: ContextVar[bool] = ContextVar("kclab_h3_fc2", default=False)
_EXCHANGED: ContextVar[bool] = ContextVar("kclab_h3_exchanged", default=False)
"""In attention whose devices have exchanged tokens for heads."""


class MiniMaxH3Adapter:
    """FC2 in bfloat16 and NVFP4, and packed attention; a step is one denoising step."""

    name = "minimax-h3"
    families: ClassVar[tuple[str, ...]] = ("fc2_bf16", "fc2_nvfp4", ATTENTION)
    roots: ClassVar[tuple[str, ...]] = (f"{MODULE}.{MODEL}",)
    handlers: ClassVar[Mapping[str, Handler]] = {}

    def attach(self, tap: Tap) -> None:
        """Wrap SGLang's functions as soon as their modules are there."""
        tap.when_imported(MODULE, lambda module: instrument(module, tap))
        tap.when_imported(LINEAR_MODULE, lambda module: instrument_linear(module, tap))
        tap.when_imported(NVFP4_MODULE, lambda module: instrument_nvfp4(module, tap))
        for name, module in IMPLEMENTATIONS.items():
            tap.when_imported(module, functools.partial(instrument_packed, tap, name))


def instrument(module: Any, tap: Tap) -> None:
    """Wrap the model's own parts; EnvironmentLacking names one that this release lacks."""
    tap.wrap(target(module, MLP), "forward", lambda method: _watched_mlp(method, tap))
    tap.wrap(target(module, LAYER), "forward", _watched_layer)
    watch_calls(tap, module, CORE, ATTENTION, see_attention)


def instrument_packed(tap: Tap, name: str, module: Any) -> None:
    """Wrap packed attention itself; EnvironmentLacking names it where it is not there."""
    watch_calls(tap, target(module, name), PACKED, ATTENTION, see_packed)


def instrument_linear(module: Any, tap: Tap) -> None:
    """Wrap the plain linear; EnvironmentLacking names it where it is not there."""
    watch_calls(tap, target(module, LINEAR), "apply", FC2, see_plain, whole=False)


def instrument_nvfp4(module: Any, tap: Tap) -> None:
    """Wrap the NVFP4 linear and the GEMM inside it.

    Without comfy-kitchen the module has no GEMM, and SGLang refuses such a checkpoint itself.
    """
    method = target(module, NVFP4)
    if getattr(module, NVFP4_GEMM, None) is None:
        return
    tap.wrap(method, "apply", _watched_nvfp4)
    watch_calls(tap, module, NVFP4_GEMM, FC2, see_nvfp4)


def _watched_mlp(method: Callable[..., Any], tap: Tap) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or tap.step() is None:
            return method(self, x, *args, **kwargs)
        kind = type(self.fc2.quant_method).__name__
        if kind not in (LINEAR, NVFP4):
            tap.count(FC2, f"linear of another kind: {kind}")
        tokens = x[0] if isinstance(x, tuple) else x
        token = _FEED_FORWARD.set(FeedForward(self.fc2, tokens.numel() // tokens.shape[-1]))
        try:
            return method(self, x, *args, **kwargs)
        finally:
            _FEED_FORWARD.reset(token)

    return forward


def _watched_layer(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        exchanged = kwargs.get("ulysses_active") and not kwargs.get("ring_active")
        token = _EXCHANGED.set(bool(exchanged))
        try:
            return method(self, *args, **kwargs)
        finally:
            _EXCHANGED.reset(token)

    return forward


def _watched_nvfp4(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def apply(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        feed_forward = _FEED_FORWARD.get()
        token = _IN_FC2.set(feed_forward is not None and feed_forward.fc2 is layer)
        try:
            return method(self, layer, *args, **kwargs)
        finally:
            _IN_FC2.reset(token)

    return apply


def see_plain(arguments: Arguments) -> Seen:
    """`apply(self, layer, x, bias)`: None for any linear but the MLP's second."""
    feed_forward = _FEED_FORWARD.get()
    if feed_forward is None or arguments["layer"] is not feed_forward.fc2:
        return None
    x, weight = arguments["x"], arguments["layer"].weight
    if arguments.get("bias") is not None:
        return Uncaptured(FC2, "with a bias")
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16:
        return Uncaptured(FC2, f"dtype {str(weight.dtype).removeprefix('torch.')}")
    n, k = weight.shape
    activation = x.reshape(-1, k)
    return Sighting(
        family="fc2_bf16",
        sizes={"n": n, "k": k},
        inputs={"activation": activation, "weight": weight.detach()},
        outputs=lambda result: {"C": result.reshape(-1, n)},
        operation=f"{MLP}.fc2",
        variant=f"rows_{activation.shape[0]}",
    )


def see_nvfp4(arguments: Arguments) -> Seen:
    """comfy-kitchen's GEMM inside FC2: packed operands with their scales; None elsewhere."""
    feed_forward = _FEED_FORWARD.get()
    if feed_forward is None or not _IN_FC2.get():
        return None
    packed, weight = _operands(arguments)
    if arguments.get("bias") is not None:
        return Uncaptured(FC2, "with a bias")
    if arguments.get("out_dtype") != torch.bfloat16:
        return Uncaptured(FC2, "output of another dtype")
    scale_a, scale_b = (arguments[f"tensor_scale_{side}"].reshape(1).float() for side in ("a", "b"))
    n = weight.shape[0]
    return Sighting(
        family="fc2_nvfp4",
        sizes={"n": n, "k": 2 * weight.shape[1]},
        inputs={
            "activation": packed,
            "weight": weight,
            "activation_scale": _scales(arguments["block_scale_a"]),
            "weight_scale": _scales(arguments["block_scale_b"]),
            "rows": feed_forward.rows,
            "alpha": scale_a * scale_b,
            "activation_tensor_scale": scale_a,
            "weight_tensor_scale": scale_b,
        },
        outputs=lambda result: {"C": result[: packed.shape[0], :n]},
        operation=NVFP4_GEMM,
        variant=f"rows_{feed_forward.rows}",
    )


def _operands(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """The first two arguments, whatever the release of comfy-kitchen calls them."""
    first, second = list(arguments.values())[:2]
    return first.view(torch.uint8), second.detach().view(torch.uint8)


def _scales(scales: Tensor) -> Tensor:
    return scales.detach().view(torch.float8_e4m3fn)


def see_attention(arguments: Arguments) -> Seen:
    """`(attention, q, k, v, *, cu_seqlens, …)`: q, k and v [T, H, D], after norm and rotation."""
    attention = arguments["attention"]
    implementation = getattr(attention, "_attention_impl", None)
    if arguments.get("gate_compress") is not None or _is_sparse(attention, arguments):
        return Uncaptured(ATTENTION, "sparse")
    if arguments.get("ulysses_active") or arguments.get("ring_active"):
        whole = _EXCHANGED.get() and _is_wrapped(implementation)
        return None if whole else Uncaptured(ATTENTION, "tokens split over several devices")
    named = {name: arguments[name] for name in ("q", "k", "v", "cu_seqlens")}
    host = arguments.get("cu_seqlens_host")
    return _packed(**named, host=host, by=implementation, operation=CORE)


def see_packed(arguments: Arguments) -> Seen:
    """`(self, query, key, value, *, cu_seqlens, …)`; None except between devices' exchanges."""
    if not _EXCHANGED.get():
        return None
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    bounds, host = arguments["cu_seqlens"], arguments.get("cu_seqlens_host")
    return _packed(q, k, v, bounds, host, by=arguments["self"], operation=PACKED)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, host: Any, by: Any, operation: str
) -> Seen:
    if q.dtype not in TAGS:
        return Uncaptured(ATTENTION, f"dtype {str(q.dtype).removeprefix('torch.')}")
    bounds = cu_seqlens.to(torch.int32)
    if int(bounds[-1] if host is None else host[-1]) != q.shape[0]:
        return Uncaptured(ATTENTION, "padded tokens")
    heads, size = q.shape[1:]
    return Sighting(
        family=ATTENTION,
        sizes={"h": heads, "d": size, "dtype": TAGS[q.dtype]},
        inputs={
            "Q": q,
            "K": k,
            "V": v,
            "qo_indptr": bounds,
            "kv_indptr": bounds,
            "is_causal": False,
            "sm_scale": _scale(by, size),
        },
        outputs=lambda result: {"O": result.reshape(-1, heads, size)},
        operation=operation,
        variant=f"tokens_{q.shape[0]}",
    )


def _is_wrapped(implementation: Any) -> bool:
    """Whether its packed attention is one of those that see_packed sees."""
    owners = (kind for kind in type(implementation).__mro__ if PACKED in vars(kind))
    owner = next(owners, None)
    return owner is not None and owner.__name__ in IMPLEMENTATIONS


def _is_sparse(attention: Any, arguments: Arguments) -> bool:
    if arguments.get("subblock_sparse_query_block_mask") is not None:
        return True
    backend = getattr(attention, "_attention_backend_enum", None)
    return "SPARSE" in getattr(backend, "name", "")


def _scale(implementation: Any, size: int) -> float:
    scale = getattr(implementation, "softmax_scale", None)
    return float(size**-0.5 if scale is None else scale)
