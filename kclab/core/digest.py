"""The content address of a tensor, and the dtype names that it is built from.

A tensor's digest is sha256 over the JSON text `["torch.<dtype>", [<shape>]]` (as `json.dumps`
writes it) followed by its elements, row-major, little-endian. File bytes, safetensors metadata
and tensor keys have no part in it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKLOAD_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://kclab.dev/workload")
"""Namespace of content-derived workload uuids."""


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type, under its torch, safetensors and byte-size names."""

    name: str
    """torch's name without the `torch.` prefix, as in definitions: `bfloat16`."""
    code: str
    """The name in a safetensors header: `BF16`."""
    itemsize: int
    """Bytes of one torch element; `float4_e2m1fn_x2` packs two values into one."""
    packing: int = 1
    """Values a torch element holds; a safetensors header counts values, torch counts elements."""


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("float64", "F64", 8),
        Dtype("float32", "F32", 4),
        Dtype("float16", "F16", 2),
        Dtype("bfloat16", "BF16", 2),
        Dtype("float8_e4m3fn", "F8_E4M3", 1),
        Dtype("float8_e5m2", "F8_E5M2", 1),
        Dtype("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
        Dtype("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
        Dtype("float8_e8m0fnu", "F8_E8M0", 1),
        Dtype("float4_e2m1fn_x2", "F4", 1, packing=2),
        Dtype("int64", "I64", 8),
        Dtype("int32", "I32", 4),
        Dtype("int16", "I16", 2),
        Dtype("int8", "I8", 1),
        Dtype("uint64", "U64", 8),
        Dtype("uint32", "U32", 4),
        Dtype("uint16", "U16", 2),
        Dtype("uint8", "U8", 1),
        Dtype("bool", "BOOL", 1),
        Dtype("complex64", "C64", 8),
    )
}
"""Every dtype that a store can hold, by torch name."""

DTYPES_BY_CODE: dict[str, Dtype] = {d.code: d for d in DTYPES.values()}
"""The same, by safetensors name."""


def element_count(shape: Sequence[int]) -> int:
    """Elements of a tensor of `shape`; 1 for a 0-d tensor."""
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def digest_header(dtype: str, shape: Sequence[int]) -> bytes:
    """The bytes that come before a tensor's elements under its digest."""
    return json.dumps([f"torch.{dtype}", list(shape)]).encode()


def tensor_digest(dtype: str, shape: Sequence[int], elements: Any) -> str:
    """Hex sha256 of a tensor: `elements` is a contiguous buffer of its bytes."""
    hasher = hashlib.sha256(digest_header(dtype, shape))
    hasher.update(elements)
    return hasher.hexdigest()


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode
"""Made once: `json.dumps` with options makes an encoder at every call."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return _encode(value)


def text_sha256(text: str) -> str:
    """Hex sha256 of UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()


def workload_uuid(
    definition: str, inputs: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Any] | None = None
) -> str:
    """The uuid5 of a workload's content.

    `inputs` maps each input name to `{"blob": sha256, "dtype": …, "shape": […]}`,
    `{"scalar": value}` or `{"random": …}`. `extra` joins the identity of workloads that have no
    content of their own (random inputs keep the uuid that their dataset gave them).
    """
    identity: dict[str, Any] = {"definition": definition, "inputs": inputs}
    if extra:
        identity["extra"] = extra
    return str(uuid.uuid5(WORKLOAD_NAMESPACE, canonical_json(identity)))
