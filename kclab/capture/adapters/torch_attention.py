"""Scaled-dot-product attention, whole, as calls of the `sdpa` family.

In inference mode the dispatcher shows the operator itself, and otherwise the fused backend that
torch chose. Its third way, plain matrix products, shows only those; the function
in `torch.nn.functional` is wrapped to see it whole. (A torch function mode would see it too, but
it turns off the fast path of `nn.MultiheadAttention`.)
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from kclab.capture.adapters import Handler, OperatorCall, Sighting, Uncaptured
from kclab.capture.adapters.torch_gemm import TAGS

if TYPE_CHECKING:
    from kclab.capture.tap import Tap

OPERATION = "torch.nn.functional.scaled_dot_product_attention"
NAME = "scaled_dot_product_attention"
HEADS = -3
"""Q, K and V are [..., heads, rows, size]."""

Seen = Sighting | Uncaptured | None


def see_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    operation: str = OPERATION,
) -> Seen:
    """One attention call; the arguments are those of the torch function."""
    refused = _refusal(query, key, value, attn_mask, dropout_p)
    if refused:
        return Uncaptured(NAME, refused)
    q, k, v = (_four(t) for t in (query, key, value))
    shape = (*query.shape[:-1], value.shape[-1])
    inputs: dict[str, Tensor | int | float | bool] = {
        "Q": q,
        "K": k,
        "V": v,
        "is_causal": bool(is_causal),
        "scale": 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
    }
    if attn_mask is not None:
        inputs["mask"] = _four(attn_mask)
    return Sighting(
        family="sdpa",
        sizes={
            "h": q.shape[HEADS],
            "d": q.shape[-1],
            "kv": k.shape[HEADS],
            "dv": v.shape[-1],
            "dtype": TAGS[q.dtype],
            "mask": _mask_kind(attn_mask),
        },
        inputs=inputs,
        outputs=lambda result: {"O": _four(_first(result).reshape(shape))},
        operation=operation,
        variant=f"queries_{q.shape[-2]}_keys_{k.shape[-2]}",
    )


def _mask_kind(mask: Tensor | None) -> str:
    if mask is None:
        return "none"
    return "bool" if mask.dtype == torch.bool else "float"


def _refusal(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float
) -> str | None:
    tensors = (query, key, value)
    if any(t.is_nested for t in tensors):
        return "nested tensors"
    if query.dtype not in TAGS or any(t.dtype != query.dtype for t in tensors):
        return f"dtype {str(query.dtype).removeprefix('torch.')}"
    if dropout_p:
        return "dropout"
    if min(t.dim() for t in tensors) < 2 or len({t.shape[:HEADS] for t in tensors}) > 1:
        return "broadcast batches"
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return "mask of another dtype"
    return None


def _four(tensor: Tensor) -> Tensor:
    """[batch, heads, rows, size]: leading dimensions folded into the batch, or made."""
    while tensor.dim() < 4:
        tensor = tensor[None]
    return tensor if tensor.dim() == 4 else tensor.flatten(0, tensor.dim() - 4)


def _first(result: Any) -> Tensor:
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


def see_operator(call: OperatorCall) -> Seen:
    """The operator itself, as inference mode shows it, or a fused backend of it."""
    mask = call.argument("attn_mask")
    if mask is None:
        mask = call.argument("attn_bias")
    return see_attention(
        call.argument("query"),
        call.argument("key"),
        call.argument("value"),
        mask,
        call.argument("dropout_p") or 0.0,
        bool(call.argument("is_causal")),
        call.argument("scale"),
        operation=call.name,
    )


ATTENTION_HANDLERS: Mapping[str, Handler] = {
    f"aten::{name}": see_operator
    for name in (
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
}
"""The operator and every fused backend that torch may choose for it."""


def watch_attention(tap: Tap) -> None:
    """Wrap the function, in `torch.nn.functional` and wherever it was imported from there."""
    original = functional.scaled_dot_product_attention
    tap.wrap(functional, NAME, lambda function: _watched(function, tap))
    wrapper = functional.scaled_dot_product_attention
    for module in list(sys.modules.values()):
        bound = getattr(module, "__dict__", {})
        for name in [n for n, value in list(bound.items()) if value is original]:
            if not bound.get("__name__", "").startswith("torch"):
                tap.wrap(module, name, lambda _: wrapper)


def _watched(function: Callable[..., Tensor], tap: Tap) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Tensor:
        # The dispatcher shows inference mode's calls by itself.
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        step = tap.step()
        if step is None:
            return function(*args, **kwargs)
        seen = tap.sight(NAME, lambda: see_attention(*_cast(args), **_cast_named(kwargs)))
        if seen is None:
            return function(*args, **kwargs)
        return tap.around(seen, step, lambda: function(*args, **kwargs))

    # TorchScript knows the built-in by its identity.
    torch.jit._builtins._register_builtin(scaled_dot_product_attention, f"aten::{NAME}")
    return scaled_dot_product_attention


def _cast(values: Sequence[Any]) -> list[Any]:
    return [_as_autocast_gives(value) for value in values]


def _cast_named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_autocast_gives(value) for name, value in values.items()}


def _as_autocast_gives(value: Any) -> Any:
    """What the operator gets where autocast lowers its inputs: that happens below the function."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    kind = value.device.type
    if value.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return value
    return value.to(torch.get_autocast_dtype(kind))
