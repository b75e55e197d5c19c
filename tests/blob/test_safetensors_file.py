"""The header reader agrees with the safetensors library on what is a file and what is not."""

from __future__ import annotations

import json
import resource
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kclab.blob.folder import read_tensor
from kclab.blob.safetensors_file import encode_header, read_slots
from kclab.core.digest import DTYPES_BY_CODE
from kclab.core.errors import BlobDamaged

CODES = [*sorted(DTYPES_BY_CODE), "F32", "F32", "nonsense"]
counts = st.integers(0, 5) | st.sampled_from([2**31, 2**62, 2**63, 2**64 - 1, 2**64, -1, 2.0, None])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(CODES),
        "shape": st.lists(counts, max_size=3),
        "data_offsets": st.lists(counts, min_size=2, max_size=2),
    },
    optional={"more": st.integers() | st.text(max_size=3)},
)
metadata = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers())


def packed(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@st.composite
def honest(draw: Any) -> bytes:
    """A file of a few tensors whose header is right, perhaps changed in one place afterwards."""
    header: dict[str, Any] = {}
    position = 0
    for key in draw(st.lists(st.text(max_size=4), max_size=3, unique=True)):
        kind = DTYPES_BY_CODE[draw(st.sampled_from(sorted(DTYPES_BY_CODE)))]
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        nbytes = kind.itemsize
        for dimension in shape:
            nbytes *= dimension
        if kind.packing > 1:
            if not shape:
                continue
            shape = [*shape[:-1], shape[-1] * kind.packing]
        offsets = [position, position + nbytes]
        header[key] = {"dtype": kind.code, "shape": shape, "data_offsets": offsets}
        position += nbytes
    file = packed(header, bytes(position))
    change = draw(st.sampled_from(["none", "none", "cut", "longer", "byte"]))
    if change == "cut":
        return file[: draw(st.integers(0, len(file)))]
    if change == "longer":
        return file + b"\0"
    if change == "byte":
        at = draw(st.integers(0, len(file) - 1))
        return file[:at] + bytes([draw(st.integers(0, 255))]) + file[at + 1 :]
    return file


@st.composite
def lying(draw: Any) -> bytes:
    """A header of plausible and implausible numbers in front of a few bytes."""
    header: dict[str, Any] = draw(st.dictionaries(st.text(max_size=3), entries, max_size=3))
    if draw(st.booleans()):
        header["__metadata__"] = draw(metadata)
    return packed(header, bytes(draw(st.integers(0, 40))))


def library_accepts(file: bytes) -> bool:
    try:
        safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return False
    return True


def we_accept(file: bytes, path: Path) -> bool:
    path.write_bytes(file)
    try:
        with path.open("rb", buffering=0) as opened:
            read_slots(opened, path)
    except BlobDamaged:
        return False
    return True


def beyond_torch(file: bytes) -> bool:
    """What the library takes and we say no to: 4-bit rows that end inside a byte; 6-bit types."""
    header = json.loads(file[8 : 8 + struct.unpack("<Q", file[:8])[0]])
    kinds = [e for k, e in header.items() if k != "__metadata__"]
    return any(
        e["dtype"].startswith("F6") or (e["dtype"] == "F4" and (e["shape"] or [1])[-1] % 2)
        for e in kinds
    )


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(file=honest() | lying())
def test_we_accept_what_the_library_accepts_and_nothing_else(tmp_path: Path, file: bytes) -> None:
    ours, theirs = we_accept(file, tmp_path / "x.safetensors"), library_accepts(file)
    assert ours == theirs or (theirs and beyond_torch(file))


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "text",
    [
        b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}',
        b'{"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":NaN}}',
        b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1e999}}',
        b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":{},"__metadata__":{},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":[],"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        json.dumps({"t": ONE}).encode() + b"\0",
        json.dumps({"t": ONE}).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps({"t": ONE}).encode(),
        json.dumps({"t": {**ONE, "shape": [2.0]}}).encode(),
        json.dumps({"t": {**ONE, "shape": [True, 2]}}).encode(),
        json.dumps({"t": {**ONE, "data_offsets": [0, 8, 8]}}).encode(),
        b"[]",
        b"null",
    ],
    ids=str,
)
def test_json_that_python_would_forgive_is_refused(tmp_path: Path, text: bytes) -> None:
    file = packed(text, bytes(8))
    assert not we_accept(file, tmp_path / "x.safetensors")
    assert not library_accepts(file)


def spec(shape: list[int], offsets: list[int]) -> dict[str, Any]:
    return {"tensor": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}


LIES = {
    "shape too big": packed(spec([1000, 1000], [0, 8]), bytes(8)),
    "hole": packed(spec([2], [4, 12]), bytes(12)),
    "end before begin": packed(spec([2], [8, 0]), bytes(8)),
    "overflow": packed(spec([2**62, 4], [0, 8]), bytes(8)),
    "overflow hidden by a zero": packed(spec([2**63, 2**63, 0], [0, 0]), b""),
    "header of 2^63": packed(spec([2], [0, 8]), bytes(8), length=2**63),
    "header over the limit": packed(spec([2], [0, 8]), bytes(8), length=100_000_001),
    "header past the end": packed(spec([2], [0, 8]), bytes(8), length=10_000),
    "trailing byte": packed(spec([2], [0, 8]), bytes(9)),
    "not JSON": packed(b"not json at all!", bytes(8)),
    "deeply nested": packed(b'{"t":' + b"[" * 100_000, bytes(8)),
    "wrong key": packed({"other": ONE}, bytes(8)),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lying_header_is_refused_at_once_in_one_sentence(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(LIES[lie])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(BlobDamaged, match=str(path)) as error:
        read_tensor(path, "tensor")
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_file_of_many_tensors_gives_each_its_place(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {f"t{i}": torch.full((i, 2), float(i)) for i in range(5)}
    path = tmp_path / "many.safetensors"
    save_file(tensors, path, metadata={"a": "b"})
    for key, tensor in tensors.items():
        stored = read_tensor(path, key)
        assert stored.shape == tuple(tensor.shape)
        assert bytes(stored.data) == tensor.numpy().tobytes()


def test_a_header_of_many_tensors_is_read(tmp_path: Path) -> None:
    header = {
        f"layer.{i}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(50_000)
    }
    path = tmp_path / "wide.safetensors"
    path.write_bytes(packed(header, bytes(50_000)))
    with path.open("rb", buffering=0) as file:
        assert len(read_slots(file, path)) == 50_000


def test_headers_are_padded_to_eight_bytes() -> None:
    for shape in ((), (1,), (12, 345), (0,)):
        assert len(encode_header("bfloat16", shape, 0)) % 8 == 0
