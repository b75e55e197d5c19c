"""Attention and routing of SGLang's language models, for the adapters of several of them.

`RadixAttention.forward` is where every attention back-end of SGLang is entered. Keys and values of
earlier tokens lie in a pool; they are gathered, for a call that is wanted, into each sequence's own
order, with those of the tokens being computed behind them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kclab.capture.adapters import CannotCapture, Late, Sighting, Uncaptured
from kclab.capture.adapters.sglang_sparse import Choice, form_of
from kclab.capture.adapters.torch_gemm import TAGS

RADIX_MODULE = "sglang.srt.layers.radix_attention"
RADIX = "RadixAttention"
ATTENTION = "RadixAttention"
RAGGED = "ragged_attention"
LATENT = "mla_absorbed"
SPARSE = "mla_sparse"
IN_FP8 = "flashmla_sparse_q8"
"""A prefill back-end that rounds queries and keys first, whatever the pool keeps."""

Arguments = Mapping[str, Any]
Seen = Sighting | Uncaptured | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one forward."""

    queries: tuple[int, ...]
    """Tokens being computed, of each sequence."""
    keys: tuple[int, ...]
    """All tokens so far, of each sequence, those being computed included."""
    requests: Tensor
    """Row of each sequence in `req_to_token`."""

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Tokens computed before, of each sequence."""
        return tuple(k - q for k, q in zip(self.keys, self.queries, strict=True))


def batch_of(forward_batch: Any) -> Batch | None:
    """The sequences of a forward; None for one that neither extends nor decodes plainly."""
    mode = forward_batch.forward_mode
    keys = _numbers(forward_batch.seq_lens_cpu, forward_batch.seq_lens)
    if mode.is_decode():
        return Batch((1,) * len(keys), keys, forward_batch.req_pool_indices)
    if mode.is_extend() and not mode.is_target_verify() and not _is_draft(mode):
        queries = _numbers(forward_batch.extend_seq_lens_cpu, forward_batch.extend_seq_lens)
        return Batch(queries, keys, forward_batch.req_pool_indices)
    return None


def _is_draft(mode: Any) -> bool:
    asks = [getattr(mode, name, None) for name in ("is_draft_extend", "is_draft_extend_v2")]
    return any(ask() for ask in asks if ask is not None)


def _numbers(on_host: Any, anywhere: Tensor) -> tuple[int, ...]:
    values = anywhere if on_host is None else on_host
    return tuple(values.tolist() if isinstance(values, Tensor) else map(int, values))


def see_attention(arguments: Arguments, backend: Callable[[], Any]) -> Seen:
    """One call of `RadixAttention.forward`; `backend` finds what holds the pools."""
    layer, forward_batch = arguments["self"], arguments["forward_batch"]
    refused = _refusal(layer, arguments)
    if refused is not None:
        return Uncaptured(ATTENTION, refused)
    batch = batch_of(forward_batch)
    if batch is None:
        return Uncaptured(ATTENTION, "neither plain prefill nor decode")
    if sum(batch.queries) != arguments["q"].shape[0]:
        return Uncaptured(ATTENTION, "padded tokens")
    if arguments.get("topk_indices") is not None:
        return _see_sparse(layer, arguments, batch, backend)
    if is_latent(layer):
        return _see_latent(layer, arguments, batch, backend)
    if layer.qk_head_dim != layer.v_head_dim:
        return _see_expanded(layer, arguments, batch)
    return _see_pooled(layer, arguments, batch, backend)


def is_latent(layer: Any) -> bool:
    """Whether all heads share one key whose first part is the value."""
    return bool(layer.tp_k_head_num == 1 and layer.qk_head_dim > layer.v_head_dim > 0)


def _refusal(layer: Any, arguments: Arguments) -> str | None:
    q, forward_batch = arguments["q"], arguments["forward_batch"]
    if q.dtype not in TAGS:
        return f"dtype {str(q.dtype).removeprefix('torch.')}"
    if layer.logit_cap:
        return "capped logits"
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        return "sliding window"
    if _devices_sharing_keys() > 1:
        return "keys split over several devices"
    if layer.is_cross_attention or getattr(forward_batch, "encoder_lens", None) is not None:
        return "cross attention"
    if getattr(layer.attn_type, "value", "decoder") != "decoder":
        return "not causal"
    if arguments.get("topk_indices") is not None and not is_latent(layer):
        return "sparse: each query chooses its keys"
    for name in ("sinks", "attn_sink", "cos_sin_cache"):
        if arguments.get(name) is not None:
            return f"with {name}"
    return None


def _devices_sharing_keys() -> int:
    """SGLang's decode context parallelism: each device's pool has a part of every sequence."""
    context = sys.modules.get("sglang.srt.runtime_context")
    if context is None:
        return 1
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # a release, a run without
        return int(context.get_parallel().attn_dcp_size)
    return 1


def _see_pooled(layer: Any, arguments: Arguments, batch: Batch, backend: Any) -> Sighting:
    """Keys and values as heads of equal size, in the pool."""
    heads, size, kv = layer.tp_q_head_num, layer.qk_head_dim, layer.tp_k_head_num
    pools = backend()

    def gather(name: str, given: Tensor | None) -> Late:
        def make() -> Tensor:
            buffer = getattr(pools.token_to_kv_pool, f"get_{name}_buffer")(layer.layer_id)
            return rows_of(batch, pools, buffer, given, arguments["q"].dtype)

        return Late((sum(batch.keys), kv, size), make)

    k, v = arguments["k"], arguments["v"]
    return _sighting(
        RAGGED,
        layer,
        arguments,
        batch,
        sizes={"h": heads, "kv": kv, "d": size, "dv": size},
        tensors={
            "Q": arguments["q"].reshape(-1, heads, size),
            "K": gather("key", None if k is None else k.reshape(-1, kv, size)),
            "V": gather("value", None if v is None else v.reshape(-1, kv, size)),
        },
        output=(heads, size),
    )


def _see_expanded(layer: Any, arguments: Arguments, batch: Batch) -> Sighting | Uncaptured:
    """Latent attention's normal form: keys and values are expanded, and all given."""
    heads, kv, k, v = layer.tp_q_head_num, layer.tp_k_head_num, arguments["k"], arguments["v"]
    forward_batch = arguments["forward_batch"]
    if getattr(forward_batch, "attn_attend_prefix_cache", None):
        return Uncaptured(ATTENTION, "one chunk of a prefix, merged with others later")
    if k is None or v is None:
        return Uncaptured(ATTENTION, "keys of a size that the pool does not hold")
    k = k.reshape(-1, kv, layer.qk_head_dim)
    given = {sum(batch.queries): batch.queries, sum(batch.keys): batch.keys}.get(k.shape[0])
    if given is None:
        return Uncaptured(ATTENTION, "padded tokens")
    return _sighting(
        RAGGED,
        layer,
        arguments,
        Batch(batch.queries, given, batch.requests),
        sizes={"h": heads, "kv": kv, "d": layer.qk_head_dim, "dv": layer.v_head_dim},
        tensors={
            "Q": arguments["q"].reshape(-1, heads, layer.qk_head_dim),
            "K": k,
            "V": v.reshape(-1, kv, layer.v_head_dim),
        },
        output=(heads, layer.v_head_dim),
    )


def _see_latent(layer: Any, arguments: Arguments, batch: Batch, backend: Any) -> Sighting:
    """Latent attention's absorbed form: the pool holds compressed key-values."""
    sizes, tensors = _latent(layer, arguments, batch, backend())
    return _sighting(
        LATENT,
        layer,
        arguments,
        batch,
        sizes=sizes,
        tensors=tensors,
        output=(sizes["h"], sizes["ckv"]),
    )


def _see_sparse(layer: Any, arguments: Arguments, batch: Batch, backend: Any) -> Seen:
    """The absorbed form over the keys that each query chose."""
    pools, indices = backend(), arguments["topk_indices"]
    mode = arguments["forward_batch"].forward_mode
    if mode.is_extend() and getattr(pools, "dsa_prefill_impl", None) == IN_FP8:
        return Uncaptured(ATTENTION, "sparse: computed in FP8")
    form = form_of(pools, mode)
    if form is None:
        return Uncaptured(ATTENTION, "sparse: chosen keys of an unknown form")
    if indices.dim() != 2 or indices.shape[0] != sum(batch.queries):
        return Uncaptured(ATTENTION, "sparse: padded choice of keys")
    table = pools.req_to_token_pool.req_to_token
    choice = Choice(indices, form, batch.queries, batch.keys, batch.requests, table)
    sizes, tensors = _latent(layer, arguments, batch, pools)
    seen = _sighting(
        SPARSE,
        layer,
        arguments,
        batch,
        sizes={**sizes, "topk": indices.shape[1]},
        tensors={**tensors, "sparse_indices": Late(tuple(indices.shape), choice.rows)},
        output=(sizes["h"], sizes["ckv"]),
    )
    dense = ("qo_indptr", "kv_indptr", "is_causal")  # the choice says it all
    return replace(seen, inputs={n: v for n, v in seen.inputs.items() if n not in dense})


def _latent(
    layer: Any, arguments: Arguments, batch: Batch, pools: Any
) -> tuple[dict[str, int], dict[str, Tensor | Late]]:
    """Sizes of an absorbed form, and its queries and keys."""
    heads, ckv = layer.tp_q_head_num, layer.v_head_dim
    kpe = layer.qk_head_dim - ckv
    q_nope, q_pe = _halves(arguments["q"], arguments.get("q_rope"), heads, ckv)
    given = _joined_key(arguments, ckv, kpe)

    def gather(part: slice, size: int) -> Late:
        def make() -> Tensor:
            buffer = pools.token_to_kv_pool.get_key_buffer(layer.layer_id)
            buffer = buffer.reshape(buffer.shape[0], -1)[:, : ckv + kpe]
            return rows_of(batch, pools, buffer, given, arguments["q"].dtype)[:, part]

        return Late((sum(batch.keys), size), make)

    return {"h": heads, "ckv": ckv, "kpe": kpe}, {
        "q_nope": q_nope,
        "q_pe": q_pe,
        "ckv": gather(slice(0, ckv), ckv),
        "kpe": gather(slice(ckv, None), kpe),
    }


def _halves(q: Tensor, q_rope: Tensor | None, heads: int, ckv: int) -> tuple[Tensor, Tensor]:
    if q_rope is not None:
        return q.reshape(-1, heads, ckv), q_rope.reshape(q.shape[0], heads, -1)
    joined = q.reshape(q.shape[0], heads, -1)
    return joined[..., :ckv], joined[..., ckv:]


def _joined_key(arguments: Arguments, ckv: int, kpe: int) -> Tensor | None:
    """[T, C + R] of the tokens being computed; None where they are in the pool already."""
    k, k_rope = arguments["k"], arguments.get("k_rope")
    if k is None:
        return None
    if k_rope is None:
        return k.reshape(-1, ckv + kpe)  # type: ignore[no-any-return]  # a tensor
    return torch.cat([k.reshape(-1, ckv), k_rope.reshape(-1, kpe)], dim=1)


def rows_of(batch: Batch, pools: Any, buffer: Tensor, given: Tensor | None, dtype: Any) -> Tensor:
    """[all keys, ...]: each sequence's rows of the pool, then its own of `given`.

    Raises CannotCapture where the pool holds another dtype than the queries'.
    """
    if buffer.dtype != dtype:
        raise CannotCapture(f"keys and values kept as {str(buffer.dtype).removeprefix('torch.')}")
    table = pools.req_to_token_pool.req_to_token
    parts, start = [], 0
    for request, total, queries in zip(
        batch.requests.tolist(), batch.keys, batch.queries, strict=True
    ):
        pooled = total if given is None else total - queries
        parts.append(buffer[table[request, :pooled].long()])
        if given is not None:
            parts.append(given[start : start + queries].to(dtype))
        start += queries
    return torch.cat(parts)


def _sighting(
    family: str,
    layer: Any,
    arguments: Arguments,
    batch: Batch,
    sizes: Mapping[str, Any],
    tensors: Mapping[str, Tensor | Late],
    output: tuple[int, int],
) -> Sighting:
    q = arguments["q"]
    return Sighting(
        family=family,
        sizes={**sizes, "dtype": TAGS[q.dtype]},
        inputs={
            **tensors,
            "qo_indptr": _bounds(batch.queries, q.device),
            "kv_indptr": _bounds(batch.keys, q.device),
            "is_causal": True,
            "sm_scale": float(layer.scaling),
        },
        outputs=lambda result: {"O": _first(result).reshape(-1, *output)},
        operation=f"{RADIX}.forward",
        variant="decode" if set(batch.queries) == {1} else "prefill",
        receipt={"layer": layer.layer_id},
    )


def _bounds(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32, device=device)


def _first(result: Any) -> Tensor:
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output
