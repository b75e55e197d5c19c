"""FlashInfer's level-10 dumps: a folder a call, with its arguments and results.

What is read: single-sequence attention, batch attention over ragged and paged keys (`run`, with the
`plan` of the same object before it), and bfloat16 matrix products. Other functions are skipped by
name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kclab.core.errors import DatasetRefused
from kclab.core.families import FAMILIES
from kclab.dataset.dumps.call import DumpedCall, Skipped, tag_of
from kclab.dataset.dumps.tensor_files import load_tensors

Arguments = Mapping[str, Any]
Plans = dict[tuple[int, int], Arguments]
"""(process, object) -> what it was planned with."""


def read_calls(path: Path) -> Iterator[DumpedCall | Skipped]:
    """Every completed call that a family describes, in the order of the dump."""
    plans: Plans = {}
    for folder in _folders(path):
        metadata = _metadata(folder)
        name = str(metadata.get("function_name", "?"))
        owner, _, method = name.rpartition(".")
        if method in ("__init__", "begin_forward"):
            continue
        try:
            arguments = _arguments(folder, metadata)
            if method == "plan":
                plans[_object(metadata)] = arguments
                continue
            if metadata.get("execution_status") != "completed":
                raise Skipped(f"{name}: it did not return")
            yield _call(name, owner, arguments, folder, metadata, plans)
        except Skipped as reason:
            yield reason


def _folders(path: Path) -> list[Path]:
    inside = path if (path / "metadata.jsonl").is_file() else None
    return [inside] if inside else sorted(f.parent for f in path.glob("*/metadata.jsonl"))


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / "metadata.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").strip().splitlines()
        record = json.loads(lines[-1])
    except (OSError, ValueError, IndexError) as error:
        raise DatasetRefused(f"{file}: cannot be read ({error}).") from error
    if not isinstance(record, dict):
        raise DatasetRefused(f"{file}: an object a line was expected.")
    return record


def _object(metadata: Mapping[str, Any]) -> tuple[int, int]:
    return int(metadata.get("process_id", 0)), int(metadata.get("self_id") or 0)


def _arguments(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """By the function's own names, tensors and plain values alike."""
    tensors: dict[str, Any] = dict(load_tensors(folder / "inputs"))
    given = {**metadata.get("input_metadata", {}), **tensors}
    names = _parameters(str(metadata.get("function_signature", "")))
    shift = 1 if names[:1] == ["self"] and isinstance(given.get("arg_0"), Tensor) else 0
    found: dict[str, Any] = {}
    for key, value in given.items():
        position = re.fullmatch(r"arg_(\d+)", key)
        if position is not None:
            index = int(position[1]) + shift
            found[names[index] if index < len(names) else key] = value
        else:
            found[key.removeprefix("kwarg_")] = value
    return found


def _parameters(signature: str) -> list[str]:
    """Names in order, out of a signature's text; commas in brackets belong to types."""
    depth, names, word = 0, [], ""
    for letter in signature.partition("(")[2]:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 or (letter == "," and not depth):
            names.append(re.split(r"[:=]", word)[0].strip(" *"))
            word = ""
        if depth < 0:
            break
        word += letter if letter != "," or depth else ""
    return [name for name in names if name and name != "/"]


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
    result = results.get("result", results.get("result_0"))
    if result is None:
        raise Skipped(f"{name}: its result was not dumped")
    family, sizes, inputs, output = read(name, arguments, result, plans.get(_object(metadata), {}))
    version = (metadata.get("versions") or {}).get("flashinfer")
    return DumpedCall(
        FAMILIES[family].make(**sizes),
        inputs,
        output,
        name,
        int(metadata.get("call_sequence", 0)),
        {"engine": "FlashInfer", "engine_version": version, "dump": folder.name},
    )


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
    cache, q = arguments.get("paged_kv_cache"), arguments["q"]
    if not isinstance(cache, Tensor):
        raise Skipped(f"{name}: keys and values in two tensors, of which the dump keeps none")
    if arguments.get("kv_layout", plan.get("kv_layout", "NHD")) == "HND":
        cache = cache.transpose(-3, -2)
    keys, lengths = _rows_of_pages(cache, bounds, pages, last)
    rows = torch.arange(len(lengths) + 1) if decode else _planned(name, plan, "qo_indptr")[0]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    merged = {**plan, **arguments} | ({"causal": True} if decode else {})
    return _attention(name, q, keys[:, 0], keys[:, 1], (rows, ends), merged, result)


PAGED_NAMES = ("paged_kv_indices", "paged_kv_last_page_len")


def _rows_of_pages(
    cache: Tensor, bounds: Tensor, pages: Tensor, last: Tensor
) -> tuple[Tensor, list[int]]:
    """([all tokens, 2, heads, size], tokens a sequence) of pages [N, 2, size of a page, …]."""
    parts, lengths = [], []
    for n, used in enumerate(last.tolist()):
        own = pages[int(bounds[n]) : int(bounds[n + 1])].long()
        count = max(0, (own.numel() - 1) * cache.shape[2] + used) if own.numel() else 0
        parts.append(cache[own].transpose(1, 2).flatten(0, 1)[:count])
        lengths.append(count)
    return torch.cat(parts), lengths


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
