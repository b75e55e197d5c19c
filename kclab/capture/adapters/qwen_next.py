"""The `qwen-next` adapter: Qwen3-Next in SGLang, its gated delta rule, attention and routing.

The rule is captured at `GDNKernelDispatcher`, which every kernel back-end is behind. Its states lie
in a pool and are updated in place: each sequence's is copied out before the call and after it. The
packed decode, which CUDA takes, is the same rule as the plain one over q, k and v in one buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from kclab.capture.adapters import CannotCapture, Handler, Late, Sighting, Uncaptured
from kclab.capture.adapters import sglang_attention as attention
from kclab.capture.adapters import sglang_routing as routing
from kclab.capture.adapters.torch_gemm import TAGS
from kclab.capture.adapters.watching import target, watch_calls

if TYPE_CHECKING:
    from kclab.capture.tap import Tap

GDN_MODULE = "sglang.srt.layers.attention.linear.gdn_backend"
DISPATCHER = "GDNKernelDispatcher"
EXTEND = "gated_delta_rule_extend"
UPDATE = "gated_delta_rule_update"
MODELS = ("sglang.srt.models.qwen3_next.Qwen3NextForCausalLM",)

Arguments = Mapping[str, Any]
Seen = Sighting | Uncaptured | None


class QwenNextAdapter:
    """Gated delta rule in prefill and decode, full attention, routing; a step is one forward."""

    name = "qwen-next"
    families: ClassVar[tuple[str, ...]] = (
        EXTEND,
        UPDATE,
        attention.RAGGED,
        "moe_topk_softmax",
    )
    roots: ClassVar[tuple[str, ...]] = MODELS
    handlers: ClassVar[Mapping[str, Handler]] = {}

    def attach(self, tap: Tap) -> None:
        """Wrap SGLang's methods as soon as their modules are there."""
        tap.when_imported(GDN_MODULE, lambda module: instrument_rule(module, tap))
        attach_shared(tap)


def attach_shared(tap: Tap) -> None:
    """Attention and routing, which SGLang's language models share."""
    tap.when_imported(attention.RADIX_MODULE, lambda module: instrument_attention(module, tap))
    tap.when_imported(routing.MODULE, lambda module: instrument_routing(module, tap))


def instrument_attention(module: Any, tap: Tap) -> None:
    """Wrap `RadixAttention.forward`; EnvironmentLacking names what is not there."""
    target(module, "get_attn_backend")

    def see(arguments: Arguments) -> Seen:
        return attention.see_attention(arguments, module.get_attn_backend)

    watch_calls(tap, target(module, attention.RADIX), "forward", attention.ATTENTION, see)


def instrument_routing(module: Any, tap: Tap) -> None:
    """Wrap `select_experts`; EnvironmentLacking names it where it is not there."""
    watch_calls(tap, module, routing.NAME, routing.WHAT, routing.see_routing)


def instrument_rule(module: Any, tap: Tap) -> None:
    """Wrap the dispatcher's methods; EnvironmentLacking names one that is not there."""
    dispatcher = target(module, DISPATCHER)
    watch_calls(tap, dispatcher, "extend", EXTEND, see_extend)
    watch_calls(tap, dispatcher, "decode", UPDATE, see_decode)
    watch_calls(tap, dispatcher, "packed_decode", UPDATE, see_packed)


def see_extend(arguments: Arguments) -> Seen:
    """Prefill: q, k [1, T, Hk, K], v [1, T, Hv, V], g and beta [1, T, Hv]."""
    if arguments.get("inplace_update") is False:
        return Uncaptured(EXTEND, "state not written back")
    q, k, v = (_tokens(arguments[name]) for name in ("q", "k", "v"))
    seen = _common(EXTEND, arguments, q, k, v)
    if isinstance(seen, Sighting):
        gates = {name: _wide(_tokens(arguments[name])) for name in ("g", "beta")}
        bounds = {"cu_seqlens": arguments["query_start_loc"].to(torch.int32)}
        seen.inputs = {**seen.inputs, **gates, **bounds}
        seen.outputs = _outputs(arguments, v.shape, lambda result: result[0])
        seen.operation = f"{DISPATCHER}.extend"
    return seen


def see_decode(arguments: Arguments) -> Seen:
    """Decode: q, k [1, B, Hk, K], v [1, B, Hv, V], a and b [B, Hv]."""
    q, k, v = (_tokens(arguments[name]) for name in ("q", "k", "v"))
    return _see_update(arguments, q, k, v, f"{DISPATCHER}.decode")


def see_packed(arguments: Arguments) -> Seen:
    """Packed decode: `mixed_qkv` [B, 2 Hk K + Hv V]; None where the kernel has none."""
    if not getattr(arguments["self"], "supports_packed_decode", True):
        return None
    if arguments.get("replayssm_d") is not None:
        return Uncaptured(UPDATE, "state kept in parts")
    mixed, states = arguments["mixed_qkv"], arguments["ssm_states"]
    heads, size, key_size = arguments["num_v_heads"], arguments["head_v_dim"], states.shape[-1]
    keys = (mixed.shape[1] - heads * size) // 2
    q, k, v = mixed.split([keys, keys, heads * size], dim=1)
    return _see_update(
        arguments,
        q.unflatten(1, (-1, key_size)),
        k.unflatten(1, (-1, key_size)),
        v.unflatten(1, (heads, size)),
        f"{DISPATCHER}.packed_decode",
    )


def _see_update(arguments: Arguments, q: Tensor, k: Tensor, v: Tensor, operation: str) -> Seen:
    seen = _common(UPDATE, arguments, q, k, v)
    if not isinstance(seen, Sighting):
        return seen
    if v.shape[0] != arguments["cache_indices"].shape[0]:
        return Uncaptured(UPDATE, "several tokens a sequence")
    a, b = (arguments[name].reshape(v.shape[:2]) for name in ("a", "b"))
    if a.dtype != q.dtype or b.dtype != q.dtype:
        return Uncaptured(UPDATE, "gates of another dtype")
    rates = {name: _wide(arguments[name].detach()) for name in ("A_log", "dt_bias")}
    seen.inputs = {**seen.inputs, **rates, "a": a, "b": b}
    seen.outputs = _outputs(arguments, v.shape, lambda result: result)
    seen.operation = operation
    if arguments.get("scale") is not None:
        seen.inputs = {**seen.inputs, "scale": float(arguments["scale"])}
    return seen


def _common(family: str, arguments: Arguments, q: Tensor, k: Tensor, v: Tensor) -> Seen:
    states, indices = arguments["ssm_states"], arguments["cache_indices"]
    for tensor in (q, k, v, states):
        if tensor.dtype not in TAGS:
            return Uncaptured(family, f"dtype {str(tensor.dtype).removeprefix('torch.')}")
    if q.shape[2] != v.shape[2]:
        return Uncaptured(family, "values of another size than keys")
    return Sighting(
        family=family,
        sizes={
            "qk": q.shape[1],
            "v": v.shape[1],
            "d": q.shape[2],
            "dtype": TAGS[q.dtype],
            "state": TAGS[states.dtype],
        },
        inputs={
            "q": q,
            "k": k,
            "v": v,
            "state": Late((indices.shape[0], *states.shape[1:]), lambda: _states(arguments)),
            "scale": q.shape[2] ** -0.5,
            "qk_l2norm": True,  # every back-end normalises inside
        },
        outputs=dict,
        operation=DISPATCHER,
        receipt={"adapter": "States gathered from the engine's pool, and scattered back by it."},
    )


def _outputs(arguments: Arguments, shape: Any, output: Any) -> Any:
    return lambda result: {
        "output": output(result).reshape(shape),
        "new_state": _states(arguments),
    }


def _states(arguments: Arguments) -> Tensor:
    """[sequences, Hv, V, K] out of the pool; CannotCapture where a sequence is padding."""
    indices = arguments["cache_indices"]
    if bool((indices < 0).any()):
        raise CannotCapture("padded sequences")
    states: Tensor = arguments["ssm_states"][indices.long()]
    return states


def _tokens(tensor: Tensor) -> Tensor:
    """Without the leading 1."""
    return tensor[0] if tensor.shape[0] == 1 and tensor.dim() > 2 else tensor


def _wide(tensor: Tensor) -> Tensor:
    """As float32, which holds every 16-bit float."""
    return tensor.float()
