"""The attention references against torch's own attention and a plain float64 computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kclab.core.families import FAMILIES
from tests.core.families.family_reference import load_run


def plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """One query at a time in float64 Python: [S, D], [T, D], [T, Dv], bool [S, T] -> [S, Dv]."""
    out = torch.zeros(q.shape[0], v.shape[1], dtype=torch.float64)
    for i in range(q.shape[0]):
        seen = [j for j in range(k.shape[0]) if visible[i, j]]
        if not seen:
            continue
        scores = [
            scale * sum(float(x) * float(y) for x, y in zip(q[i], k[j], strict=True)) for j in seen
        ]
        top = max(scores)
        raised = [math.exp(s - top) for s in scores]
        for weight, j in zip(raised, seen, strict=True):
            out[i] += weight / sum(raised) * v[j].double()
    return out


def sdpa(**options: object):
    return load_run(FAMILIES["sdpa"].make(h=4, d=8, **options))


def heads(batch: int, count: int, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(batch, count, rows, size, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_equals_torchs_in_every_dtype_and_with_unequal_lengths(dtype, causal):
    q, k, v = heads(2, 4, 5, 8, dtype), heads(2, 4, 9, 8, dtype), heads(2, 4, 9, 6, dtype)
    expected = scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal, scale=0.3
    )
    got = sdpa(dv=6)(q, k, v, causal, 0.3)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_sdpa_shares_key_heads_as_torchs_grouped_queries_do():
    q, k, v = (heads(2, n, 7, 8, torch.float64) for n in (6, 2, 2))
    expected = scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.5)
    torch.testing.assert_close(sdpa(kv=2)(q, k, v, False, 0.5), expected)


@pytest.mark.parametrize("shape", [(2, 4, 5, 9), (1, 1, 5, 9), (2, 1, 1, 9), (1, 1, 5, 1)])
def test_sdpa_broadcasts_masks_as_torch_does(shape):
    q, k, v = (heads(2, 4, n, 8, torch.float64) for n in (5, 9, 9))
    added = torch.randn(*shape, dtype=torch.float64)
    allowed = (torch.rand(*shape) > 0.4) | (torch.arange(shape[-1]) == 0)
    for mask in (added, allowed):
        expected = scaled_dot_product_attention(q, k, v, mask.expand(2, 4, 5, 9), scale=1.5)
        torch.testing.assert_close(sdpa(mask="float")(q, k, v, False, 1.5, mask), expected)


def test_sdpa_gives_zeros_to_a_query_that_may_look_nowhere():
    q, k, v = (heads(1, 4, n, 8, torch.float32) for n in (3, 4, 4))
    allowed = torch.ones(1, 1, 3, 4, dtype=torch.bool)
    allowed[..., 1, :] = False
    got = sdpa(mask="bool")(q, k, v, False, 1.0, allowed)
    assert torch.equal(got[:, :, 1], torch.zeros(1, 4, 8))
    assert torch.isfinite(got).all()


def test_sdpa_without_keys_or_queries_gives_zeros_of_the_right_shape():
    q, none = heads(1, 4, 3, 8, torch.float32), heads(1, 4, 0, 8, torch.float32)
    assert torch.equal(sdpa()(q, none, none, False, 1.0), torch.zeros(1, 4, 3, 8))
    assert sdpa()(none, q, q, False, 1.0).shape == (1, 4, 0, 8)


def test_sdpa_in_row_blocks_equals_sdpa_at_once():
    few = {"SCORES": 4 * 9 * 2}
    plain = load_run(FAMILIES["sdpa"].make(h=4, d=8), **few)
    masked = load_run(FAMILIES["sdpa"].make(h=4, d=8, mask="float"), **few)
    q, k, v = (heads(1, 4, n, 8, torch.float64) for n in (5, 9, 9))
    mask = torch.randn(1, 1, 5, 9, dtype=torch.float64)
    causal = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(plain(q, k, v, True, 1.0), causal)
    expected = scaled_dot_product_attention(q, k, v, mask, scale=1.0)
    torch.testing.assert_close(masked(q, k, v, False, 1.0, mask), expected)


def block_causal(prefix: bool, **constants: object):
    return load_run(
        FAMILIES["prefix_cached_block_causal"].make(h=2, d=4, prefix=prefix), **constants
    )


IDS = [-1, -1, 0, 0, -1, 1, 1, 2, 2, 2]
"""Two texts with an image each between them, two adjacent images, the last being the target."""

VISIBLE = [
    "X.........",
    "XX........",
    "XXXX......",
    "XXXX......",
    "XXXXX.....",
    "XXXXXXX...",
    "XXXXXXX...",
    "XXXXXXXXXX",
    "XXXXXXXXXX",
    "XXXXXXXXXX",
]
"""Drawn by hand: text sees what came before, an image also all of itself, and no later image."""


def joint(dtype: torch.dtype = torch.float32, batch: int = 2):
    q, k, v = (torch.randn(batch, len(IDS), 2, 4, dtype=dtype) for _ in range(3))
    return q, k, v, torch.tensor(IDS, dtype=torch.int32), torch.ones(batch, len(IDS)).bool()


def split(prefix: int, q, k, v):
    """(Q, K_current, V_current, K_prefix, V_prefix) with the first `prefix` tokens cached."""
    return q[:, prefix:], k[:, prefix:], v[:, prefix:], k[:, :prefix], v[:, :prefix]


@pytest.mark.parametrize("prefix", [0, 4, 7])
def test_block_causal_visibility_is_the_drawn_one(prefix):
    q, k, v, ids, valid = joint(torch.float64)
    visible = torch.tensor([[c == "X" for c in row] for row in VISIBLE])
    got = block_causal(prefix > 0)(*split(prefix, q, k, v), ids, valid, 0.5)
    for b in range(2):
        for h in range(2):
            want = plain_attention(q[b, :, h], k[b, :, h], v[b, :, h], visible, 0.5)
            torch.testing.assert_close(got[b, :, h], want[prefix:])


def test_block_causal_drops_padded_keys_and_zeroes_a_query_without_any():
    q, k, v, ids, valid = joint(torch.float64)
    valid[0, :2] = False
    visible = torch.tensor([[c == "X" for c in row] for row in VISIBLE]) & valid[0]
    got = block_causal(False)(*split(0, q, k, v), ids, valid, 0.5)
    want = plain_attention(q[0, :, 1], k[0, :, 1], v[0, :, 1], visible, 0.5)
    torch.testing.assert_close(got[0, :, 1], want)
    assert torch.equal(got[0, 0], torch.zeros(2, 4, dtype=torch.float64))


def test_block_causal_in_row_blocks_equals_it_at_once():
    q, k, v, ids, valid = joint(torch.float64)
    inputs = (*split(4, q, k, v), ids, valid, 0.5)
    torch.testing.assert_close(
        block_causal(True, SCORES=2 * 2 * 10 * 3)(*inputs), block_causal(True)(*inputs)
    )


def test_block_causal_takes_no_current_tokens():
    q, k, v, ids, valid = joint()
    assert block_causal(True)(*split(10, q, k, v), ids, valid, 0.5).shape == (2, 0, 2, 4)


def test_block_causal_is_what_diffusers_masks_for_qwen_image():
    transformer = pytest.importorskip("diffusers.models.transformers.transformer_qwenimage21")
    ids = torch.tensor(IDS)
    segments = transformer._qwenimage21_prefix_segments(ids, 7)
    assert segments == [(0, 2, True), (2, 4, False), (4, 5, True), (5, 7, False)]
    q, k, v, _, valid = joint(torch.float64)
    valid[1, 1] = False
    mask = transformer.build_qwenimage21_block_causal_mask(ids, valid, 2, torch.device("cpu"))
    rows, keys = torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij")
    visible = torch.stack([mask.mask_mod(torch.tensor(b), 0, rows, keys) for b in range(2)])
    expected = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), visible[:, None], scale=0.5
    )
    got = block_causal(False)(*split(0, q, k, v), ids.int(), valid, 0.5)
    torch.testing.assert_close(got.transpose(1, 2), expected)
