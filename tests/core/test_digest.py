"""Content addresses: golden values, and what may not share one."""

from __future__ import annotations

import hashlib

import pytest

from kclab.core.digest import canonical_json, tensor_digest, workload_uuid

GOLDEN = [
    ("bfloat16", [2], "803f00c0",
     "1b41becda2143f14ddc95ef122b3809420f9c318840153e18f623dd965d05aea"),
    ("float32", [2], "0000803f000000c0",
     "63e758647477305b5a74f74301a39828ee76ae1b1db76c3dbf82ba7fd34ab88a"),
    ("float8_e4m3fn", [3], "38c07e",
     "1eefa898f6cb91725cff000b84ef117733e90dfed684a35b19b28687b1f2cdbb"),
    ("float32", [], "00006040",
     "55c75ff0131dabf901f8693bad90cf39e3781ec9161e9b0df8849ee63edadc5b"),
    ("float32", [0], "",
     "59b34873ddbc8ea61997b91e8ac350311e0cf2100ecf6b727d1993755b7bb8fa"),
    ("bool", [2], "0100",
     "3fe61aea2b51e7dc911eeef46f3d7198cce594c3f8e4776b2f287f30d55f676d"),
    ("uint64", [1], "ff" * 8,
     "50e1a26add469c167397bcdd0aa22e963fef60ae8b9f7eb9cc5df18044e84c4a"),
    ("float4_e2m1fn_x2", [2, 1], "1234",
     "3b682529e078d929090a17eed88d1c36c3160610404bdb33cfd7b2198b3c2410"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "raw", "sha256"), GOLDEN, ids=lambda v: str(v)[:12])
def test_golden_digests(dtype: str, shape: list[int], raw: str, sha256: str) -> None:
    assert tensor_digest(dtype, shape, bytes.fromhex(raw)) == sha256


def test_the_digest_is_sha256_of_a_json_header_and_the_bytes() -> None:
    expected = hashlib.sha256(b'["torch.bfloat16", [3, 4]]' + bytes(24)).hexdigest()
    assert tensor_digest("bfloat16", (3, 4), bytes(24)) == expected


def test_same_bytes_of_another_dtype_or_shape_get_another_digest() -> None:
    raw = bytes(range(1, 13))
    kinds = [
        ("bfloat16", [6]),
        ("bfloat16", [2, 3]),
        ("bfloat16", [3, 2]),
        ("int16", [6]),
        ("uint8", [12]),
        ("float32", [3]),
    ]
    assert len({tensor_digest(dtype, shape, raw) for dtype, shape in kinds}) == 6


@pytest.mark.parametrize(
    ("dtype", "raw"),
    [
        ("float32", "0100807f"),
        ("float32", "0000c07f"),
        ("bfloat16", "817f"),
        ("float32", "00000080"),
    ],
    ids=["signalling NaN", "quiet NaN", "bf16 NaN", "minus zero"],
)
def test_bits_that_a_cast_would_lose_are_part_of_the_digest(dtype: str, raw: str) -> None:
    import torch

    from kclab.blob.tensors import TORCH_DTYPES, to_bytes

    tensor = torch.tensor(list(bytes.fromhex(raw)), dtype=torch.uint8).view(TORCH_DTYPES[dtype])
    stored = to_bytes(tensor)
    assert bytes(stored.data).hex() == raw


def test_the_digest_of_a_torch_tensor_is_that_of_its_bytes() -> None:
    import torch

    from kclab.blob.tensors import to_bytes

    stored = to_bytes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    assert tensor_digest(stored.dtype, stored.shape, stored.data) == GOLDEN[0][3]


def test_workload_identity_is_content_alone() -> None:
    one = {"x": {"blob": "ab", "dtype": "float32", "shape": [2]}, "s": {"scalar": 1.0}}
    two = {"s": {"scalar": 1.0}, "x": {"shape": [2], "dtype": "float32", "blob": "ab"}}
    assert workload_uuid("gemm", one) == workload_uuid("gemm", two)
    assert workload_uuid("gemm", one) != workload_uuid("other", one)


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (True, 1), (0.0, -0.0)])
def test_scalars_that_compare_equal_are_different_inputs(a: object, b: object) -> None:
    assert workload_uuid("d", {"s": {"scalar": a}}) != workload_uuid("d", {"s": {"scalar": b}})


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5]}'
