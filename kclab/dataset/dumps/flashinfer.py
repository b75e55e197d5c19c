"""FlashInfer's level-10 dumps: a folder a call, with its arguments and results.

What is read: single-sequence attention, batch attention over ragged and paged keys (`run`, with the
`plan` of the same object before it), and bfloat16 matrix products. Other functions are skipped by
name. A call inside a CUDA graph has a snapshot of each replay, and each is a call of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kclab.core.families import FAMILIES
from kclab.dataset.dumps.call import DumpedCall, Skipped, tag_of
from kclab.dataset.dumps.flashinfer_calls import (
    call_folders,
    object_of,
    read_arguments,
    read_metadata,
    unfinished,
)
from kclab.dataset.dumps.tensor_files import load_tensors

Arguments = Mapping[str, Any]
Plans = dict[tuple[int, int], Arguments]
"""(process, object) -> what it was planned with."""


def read_calls(path: Path) -> Iterator[DumpedCall | Skipped]:
    """Every completed call that a family describes, in the order of the dump."""
    made: Plans = {}
    plans: Plans = {}
    for folder in call_folders(path):
        metadata = read_metadata(folder)
        name = str(metadata.get("function_name", "?"))
        owner, _, method = name.rpartition(".")
        try:
            arguments = read_arguments(folder, metadata)
            if method == "__init__":  # an id may have been another object's before
                made[object_of(metadata)] = plans[object_of(metadata)] = arguments
                continue
            if method == "plan":
                plans[object_of(metadata)] = {**made.get(object_of(metadata), {}), **arguments}
                continue
            if metadata.get("execution_status") != "completed":
                raise Skipped(f"{name}: {unfinished(metadata)}")
            yield _call(name, owner, arguments, folder, metadata, plans)
        except Skipped as reason:
            yield reason


def _call(
    name: str,
    owner: str,
    arguments: Arguments,
    folder: Path,
    metadata: Mapping[str, Any],
    plans: Plans,
) -> DumpedCall:
    read = READERS.get(name.rpartition(".")[2] if not owner else name)
    if read is None:
        raise Skipped(f"{name}: no family describes it")
    results = load_tensors(folder / "outputs")
    result = next((results[key] for key in RESULTS if key in results), None)
    if result is None:
        raise Skipped(f"{name}: its result was not dumped")
    family, sizes, inputs, output = read(
        name, arguments, result, plans.get(object_of(metadata), {})
    )
    version = (metadata.get("versions") or {}).get("flashinfer")
    return DumpedCall(
        FAMILIES[family].make(**sizes),
        inputs,
        output,
        name,
        int(metadata.get("call_sequence", 0)),
        {
            "engine": "FlashInfer",
            "engine_version": version,
            "dump": folder.name,
            "cuda_graph_replay": metadata.get("graph_capture_flush_index"),
        },
    )


RESULTS = ("result", "result_0", "result__0")
"""How the first result is called: alone, of a tuple, of a list."""


Read = tuple[str, dict[str, Any], dict[str, Any], dict[str, Tensor]]


def _attention(
    name: str, q: Tensor, k: Tensor, v: Tensor, bounds: tuple[Any, Any], arguments: Arguments,
    result: Tensor,
) -> Read:  # fmt: skip
    """`ragged_attention` of q [T, H, D] over k, v [T, Hkv, D], all in NHD order."""
    for odd in ("logits_soft_cap", "custom_mask", "packed_custom_mask", "alibi_slopes"):
        if arguments.get(odd) not in (None, 0, 0.0):
            raise Skipped(f"{name}: with {odd}")
    if arguments.get("window_left", -1) not in (None, -1):
        raise Skipped(f"{name}: with a window")
    if arguments.get("pos_encoding_mode", "NONE") not in (None, "NONE"):
        raise Skipped(f"{name}: it rotates its inputs itself")
    if any(tensor.dtype != q.dtype for tensor in (k, v)):
        raise Skipped(f"{name}: keys of another dtype than queries")
    scale = arguments.get("sm_scale")
    sizes = {
        "h": q.shape[1],
        "kv": k.shape[1],
        "d": q.shape[2],
        "dv": v.shape[2],
        "dtype": tag_of(q, name),
    }
    inputs = {
        "Q": q,
        "K": k,
        "V": v,
        "qo_indptr": _whole(bounds[0]),
        "kv_indptr": _whole(bounds[1]),
        "is_causal": bool(arguments.get("causal", False)),
        "sm_scale": 1 / math.sqrt(q.shape[2]) if scale is None else float(scale),
    }
    return "ragged_attention", sizes, inputs, {"O": result.reshape(*q.shape[:2], v.shape[2])}


def _whole(values: Any) -> Tensor:
    return torch.as_tensor(values).to("cpu", torch.int32)


def _single(name: str, arguments: Arguments, result: Tensor, _: Arguments) -> Read:
    q, k, v = (arguments.get(part) for part in ("q", "k", "v"))
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        raise Skipped(f"{name}: q, k and v were not dumped")
    if arguments.get("kv_layout", "NHD") == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    q = q[None] if q.dim() == 2 else q
    return _attention(name, q, k, v, ([0, q.shape[0]], [0, k.shape[0]]), arguments, result)


def _planned(name: str, plan: Arguments, *names: str) -> list[Tensor]:
    found = [next((plan[n] for n in (f"_{m}", m) if n in plan), None) for m in names]
    if not all(isinstance(tensor, Tensor) for tensor in found):
        raise Skipped(f"{name}: its plan was not dumped (FLASHINFER_DUMP_EXCLUDE)")
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def _ragged(name: str, arguments: Arguments, result: Tensor, plan: Arguments) -> Read:
    rows, keys = _planned(name, plan, "qo_indptr", "kv_indptr")
    q, k, v = (arguments[part] for part in ("q", "k", "v"))
    return _attention(name, q, k, v, (rows, keys), {**plan, **arguments}, result)


def _paged(name: str, arguments: Arguments, result: Tensor, plan: Arguments) -> Read:
    decode = "Decode" in name
    bounds = _planned(name, plan, *(("indptr",) if decode else ("paged_kv_indptr",)))[0]
    pages, last = _planned(name, plan, *(("indices", "last_page_len") if decode else PAGED_NAMES))
    caches, q = _caches(name, arguments), arguments["q"]
    if arguments.get("kv_layout", plan.get("kv_layout", "NHD")) == "HND":
        caches = [cache.transpose(1, 2) for cache in caches]
    lengths = _lengths(caches[0].shape[1], bounds, last)
    keys, values = (_rows_of_pages(cache, bounds, pages, lengths) for cache in caches)
    rows = torch.arange(len(lengths) + 1) if decode else _planned(name, plan, "qo_indptr")[0]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    merged = {**plan, **arguments} | ({"causal": True} if decode else {})
    return _attention(name, q, keys, values, (rows, ends), merged, result)


PAGED_NAMES = ("paged_kv_indices", "paged_kv_last_page_len")


def _caches(name: str, arguments: Arguments) -> list[Tensor]:
    """Keys and values, each [pages, …]: two tensors, or halves [pages, 2, …] of one."""
    cache = arguments.get("paged_kv_cache")
    if isinstance(cache, Tensor):
        return [cache[:, 0], cache[:, 1]]
    if isinstance(cache, list) and len(cache) == 2 and all(isinstance(c, Tensor) for c in cache):
        return cache
    raise Skipped(f"{name}: keys and values that the dump does not keep")


def _lengths(page: int, bounds: Tensor, last: Tensor) -> list[int]:
    """Tokens of each sequence: full pages of `page` tokens, and what its last one has."""
    counts = (bounds[1:] - bounds[:-1]).tolist()
    pairs = zip(counts, last.tolist(), strict=True)
    return [max(0, (count - 1) * page + used) if count else 0 for count, used in pairs]


def _rows_of_pages(cache: Tensor, bounds: Tensor, pages: Tensor, lengths: Sequence[int]) -> Tensor:
    """[all tokens, heads, size] of pages [N, size of a page, heads, size]."""
    parts = []
    for n, count in enumerate(lengths):
        own = pages[int(bounds[n]) : int(bounds[n + 1])].long()
        parts.append(cache[own].flatten(0, 1)[:count])
    return torch.cat(parts)


def _mm(name: str, arguments: Arguments, result: Tensor, _: Arguments) -> Read:
    a, b, bias = arguments.get("a"), arguments.get("b"), arguments.get("bias")
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != 2 or b.dim() != 2:
        raise Skipped(f"{name}: not two matrices")
    if result.dtype != a.dtype or b.dtype != a.dtype:
        raise Skipped(f"{name}: not of one dtype")
    n, k = b.shape[1], b.shape[0]
    sizes = {"n": n, "k": k, "dtype": tag_of(a, name), "bias": isinstance(bias, Tensor)}
    inputs = {"A": a, "W": b.t(), **({"bias": bias} if isinstance(bias, Tensor) else {})}
    return "dense_gemm", sizes, inputs, {"C": result}


READERS: Mapping[str, Callable[[str, Arguments, Tensor, Arguments], Read]] = {
    "single_prefill_with_kv_cache": _single,
    "single_decode_with_kv_cache": _single,
    "mm_bf16": _mm,
    "tgv_gemm_sm100": _mm,
    "BatchPrefillWithRaggedKVCacheWrapper.run": _ragged,
    "BatchPrefillWithPagedKVCacheWrapper.run": _paged,
    "BatchDecodeWithPagedKVCacheWrapper.run": _paged,
}
"""By function, or class and method."""
