"""Every dtype and memory layout that an engine may hold is stored as the values it stands for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kclab.blob.tensors import TORCH_DTYPES, to_tensor
from kclab.capture.checksum import (
    KnownTensors,
    content_key,
    dense_view,
    device_checksum,
    host_checksum,
)
from kclab.capture.snapshot import blank_snapshot, fill, recognise, stored_form
from kclab.core.digest import tensor_digest
from kclab.db.store import Store
from tests.capture.recording import definition, recording

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t.reshape(6, 4),
    "transposed": lambda t: t.reshape(6, 4).t(),
    "sliced": lambda t: t.reshape(6, 4)[:, ::2],
    "permuted": lambda t: t.reshape(2, 3, 4).permute(2, 0, 1),
    "expanded": lambda t: t[:1].expand(1000),
    "zero-dimensional": lambda t: t[5],
    "empty": lambda t: t.reshape(6, 4)[:0],
    "offset": lambda t: t[3:9],
}


def _bytes(tensor: Tensor) -> list[int]:
    return [b for t in tensor.reshape(-1) for b in t.reshape(1).view(torch.uint8).tolist()]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_a_snapshot_is_the_logical_values(dtype: str, view: str) -> None:
    size = TORCH_DTYPES[dtype].itemsize
    raw = torch.arange(24 * size, dtype=torch.int32).remainder(2 if dtype == "bool" else 251)
    tensor = VIEWS[view](raw.to(torch.uint8).view(TORCH_DTYPES[dtype]))
    snapshot = fill(blank_snapshot(tensor), tensor)
    stored, _ = stored_form(snapshot)
    assert (stored.dtype, stored.shape) == (dtype, tuple(tensor.shape))
    view_of = tensor if size > 1 else tensor.view(torch.uint8)
    assert list(bytes(stored.data)) == _bytes(view_of)


def test_every_stored_dtype_is_one_that_this_torch_has() -> None:
    assert len(TORCH_DTYPES) == 20


def test_conjugate_and_negative_views_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    stored, _ = stored_form(fill(blank_snapshot(tensor), tensor))
    assert to_tensor(stored).tolist() == [1 - 2j, 3 + 4j]
    imaginary = tensor.imag
    stored, _ = stored_form(fill(blank_snapshot(imaginary), imaginary))
    assert to_tensor(stored).tolist() == [-2.0, 4.0]


def test_a_view_of_a_giant_buffer_stores_only_the_slice(store: Store) -> None:
    buffer = torch.zeros(1 << 24)
    x = buffer[8:12]
    what = definition({"x": (["M"], "float32")}, {"y": (["M"], "float32")})
    with recording(store) as session:
        session.record({"x": x}, {"y": buffer[:4]}, what)
        session.drain()
    sizes = [path.stat().st_size for path in store.blobs.root.rglob("*.safetensors")]
    assert sizes
    assert max(sizes) < 1024


def test_strides_of_the_engines_own_tensor_stay_in_the_receipt(store: Store) -> None:
    what = definition({"x": (["M", "N"], "float32")}, {"y": (["M"], "float32")})
    with recording(store) as session:
        session.record(
            {"x": torch.arange(6.0).reshape(2, 3).t()}, {"y": torch.ones(1).expand(3)}, what
        )
        session.drain()
        (stored,) = session.captures()
    assert stored.inputs["x"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert stored.receipt["strides"] == {"x": [1, 3], "y": [0]}


def test_blob_files_have_the_mode_that_the_umask_leaves(store: Store) -> None:
    with recording(store) as session:
        session.gemm()
        session.drain()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.blobs.root.rglob("*.safetensors")}
    assert modes == {0o666 & ~_umask()}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Recognising repeated tensors


def _known(tensor: Tensor) -> KnownTensors:
    """Knowledge of one tensor, as the writer gains it."""
    known = KnownTensors()
    stored, key = stored_form(fill(recognise(tensor, known), tensor))
    assert key is not None
    known.add(key, tensor_digest(stored.dtype, stored.shape, stored.data))
    return known


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_a_repeated_tensor_is_recognised_and_not_copied(layout: str) -> None:
    weight = torch.randn(512, 300)
    view = weight if layout == "plain" else weight.t()
    known = _known(view)
    twin = weight.clone() if layout == "plain" else weight.clone().t()
    snapshot = fill(recognise(twin, known), twin)
    assert snapshot.copy is None
    assert snapshot.digest == tensor_digest(
        "float32", tuple(view.shape), view.contiguous().numpy().data
    )


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "one bit": lambda t: _flip(t),
    "two rows exchanged": lambda t: t[[1, 0, *range(2, t.shape[0])]],
    "through .data": lambda t: _through_data(t),
    "another shape": lambda t: t.reshape(300, 512),
    "another dtype": lambda t: t.view(torch.int32),
    "transposed": lambda t: t.reshape(300, 512).t(),
}


def _flip(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed.view(torch.int32)[-1, -1] ^= 1
    return changed


def _through_data(tensor: Tensor) -> Tensor:
    tensor.data[0, 0] += 1
    return tensor


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_is_not_taken_for_the_known_one(change: str) -> None:
    weight = torch.randn(512, 300)
    known = _known(weight)
    changed = CHANGES[change](weight)
    assert fill(recognise(changed, known), changed).digest is None


def test_small_tensors_are_simply_copied() -> None:
    tensor = torch.ones(4)
    known = KnownTensors()
    _, key = stored_form(fill(recognise(tensor, known), tensor))
    assert key is None


def test_the_device_checksum_depends_on_every_position() -> None:
    words = torch.randint(-(2**62), 2**62, (5000,))
    original = device_checksum(words)
    assert len(original) == 16
    assert device_checksum(words.clone()) == original
    assert device_checksum(words.flip(0)) != original
    swapped = words.clone()
    swapped[[10, 4000]] = swapped[[4000, 10]]
    assert device_checksum(swapped) != original
    for position in (0, 2500, 4999):
        for bit in (0, 31, 62):
            changed = words.clone()
            changed[position] ^= 1 << bit
            assert device_checksum(changed) != original


def test_the_device_checksum_has_no_cheap_collisions() -> None:
    sums = {device_checksum(torch.tensor([a, b])) for a in range(-40, 40) for b in range(-40, 40)}
    assert len(sums) == 6400


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 37])
def test_the_device_checksum_takes_any_length_and_alignment(count: int) -> None:
    buffer = torch.arange(64, dtype=torch.uint8)
    assert device_checksum(buffer[3 : 3 + count]) == device_checksum(buffer[3 : 3 + count].clone())


def test_the_host_checksum_is_128_bits_over_all_bytes() -> None:
    data = bytearray(1000)
    before = host_checksum(data)
    data[999] = 1
    assert len(before) == 16
    assert host_checksum(data) != before


def test_overlapping_tensors_have_no_content_key() -> None:
    assert dense_view(torch.ones(1).expand(1000)) is None
    view = dense_view(torch.ones(3, 4).t())
    assert view is not None
    assert content_key("float32", (4, 3), view)[2] == (1, 0)
