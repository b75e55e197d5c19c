"""The references of what serving engines batch: against plain computations, scalar by scalar."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kclab.core.errors import BadUsage
from kclab.core.families import FAMILIES
from tests.core.families.family_reference import load_run

QK, V, D = 2, 4, 3


def wide(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def step_by_hand(S, q, k, v, decay, beta, scale):
    """S = decay S (I - beta k k^T) + beta v k^T, o = scale S q, in Python floats."""
    out = []
    for row in range(D):
        seen = sum(S[row][c] * k[c] for c in range(D))
        S[row] = [decay * S[row][c] + beta * (v[row] - decay * seen) * k[c] for c in range(D)]
        out.append(scale * sum(S[row][c] * q[c] for c in range(D)))
    return out


def normalised(x: torch.Tensor, l2norm: bool) -> list[float]:
    values = [float(n) for n in x]
    length = math.sqrt(sum(n * n for n in values) + 1e-6) if l2norm else 1.0
    return [n / length for n in values]


@pytest.mark.parametrize("l2norm", [False, True])
def test_extend_follows_the_recurrence_in_each_sequence(l2norm):
    q, k, v, state = wide(7, QK, D), wide(7, QK, D), wide(7, V, D), wide(3, V, D, D)
    g, beta = -torch.rand(7, V).double(), torch.rand(7, V).double()
    run = load_run(FAMILIES["gated_delta_rule_extend"].make(qk=QK, v=V, d=D))
    bounds = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    output, new_state = run(q, k, v, state, g, beta, bounds, 0.25, l2norm)
    assert torch.equal(new_state[1], state[1])
    for n, rows in ((0, range(3)), (2, range(3, 7))):
        for h in range(V):
            S = [[float(s) for s in row] for row in state[n, h]]
            for t in rows:
                keys = (normalised(x[t, h // (V // QK)], l2norm) for x in (q, k))
                decay, write = math.exp(float(g[t, h])), float(beta[t, h])
                wanted = step_by_hand(S, *keys, [float(x) for x in v[t, h]], decay, write, 0.25)
                torch.testing.assert_close(output[t, h], torch.tensor(wanted).double())
            torch.testing.assert_close(new_state[n, h], torch.tensor(S).double())


@pytest.mark.parametrize("l2norm", [False, True])
def test_update_is_one_token_of_extend_with_its_gates(l2norm):
    q, k, v, state = wide(5, QK, D), wide(5, QK, D), wide(5, V, D), wide(5, V, D, D)
    a, b, rate, bias = wide(5, V), wide(5, V), wide(V), wide(V)
    update = load_run(FAMILIES["gated_delta_rule_update"].make(qk=QK, v=V, d=D))
    extend = load_run(FAMILIES["gated_delta_rule_extend"].make(qk=QK, v=V, d=D))
    g = -torch.exp(rate) * torch.log1p(torch.exp(a + bias))
    wanted = extend(q, k, v, state, g, 1 / (1 + torch.exp(-b)), torch.arange(6), 0.5, l2norm)
    got = update(q, k, v, state, rate, a, bias, b, 0.5, l2norm)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def ragged(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("causal", [False, True])
def test_ragged_attention_is_each_sequences_own(causal):
    rows, keys = [2, 0, 4], [5, 3, 4]
    q, k, v = wide(6, 4, 8), wide(12, 2, 8), wide(12, 2, 3)
    run = load_run(FAMILIES["ragged_attention"].make(h=4, kv=2, d=8, dv=3), BLOCK=3)
    got = run(q, k, v, ragged(rows), ragged(keys), causal, 0.4)
    start = begin = 0
    for count, total in zip(rows, keys, strict=True):
        mask = torch.ones(count, total, dtype=torch.bool)
        if causal:
            mask = mask.tril(total - count)
        parts = (q[start : start + count], k[begin : begin + total], v[begin : begin + total])
        q1, k1, v1 = (x.transpose(0, 1)[None] for x in parts)
        wanted = scaled_dot_product_attention(q1, k1, v1, mask, scale=0.4, enable_gqa=True)
        torch.testing.assert_close(got[start : start + count], wanted[0].transpose(0, 1))
        start, begin = start + count, begin + total


@pytest.mark.parametrize("causal", [False, True])
def test_absorbed_latent_attention_equals_the_expanded_one(causal):
    """With keys and values expanded by W_uk and W_uv, as DeepSeek-V2 defines the attention."""
    heads, ckv, nope, kpe, size = 3, 6, 4, 2, 5
    q_nope, q_pe = wide(5, heads, nope), wide(5, heads, kpe)
    latent, rotated = wide(9, ckv), wide(9, kpe)
    up_k, up_v = wide(heads, nope, ckv), wide(heads, size, ckv)
    rows, keys = ragged([2, 3]), ragged([4, 5])
    run = load_run(FAMILIES["mla_absorbed"].make(h=heads, ckv=ckv, kpe=kpe), BLOCK=2)
    absorbed = torch.einsum("qhn,hnc->qhc", q_nope, up_k)
    got = run(absorbed, q_pe, latent, rotated, rows, keys, causal, 0.3)
    key = torch.einsum("kc,hnc->khn", latent, up_k)
    key = torch.cat([key, rotated[:, None].expand(-1, heads, -1)], -1)
    value = torch.einsum("kc,hvc->khv", latent, up_v)
    plain = load_run(FAMILIES["ragged_attention"].make(h=heads, d=nope + kpe, dv=size))
    query = torch.cat([q_nope, q_pe], -1)
    wanted = plain(query, key, value, rows, keys, causal, 0.3)
    torch.testing.assert_close(torch.einsum("qhc,hvc->qhv", got, up_v), wanted)


def test_sparse_latent_attention_is_the_dense_one_where_all_else_is_masked():
    heads, ckv, kpe = 3, 6, 2
    q_nope, q_pe, latent, rotated = (
        wide(5, heads, ckv),
        wide(5, heads, kpe),
        wide(9, ckv),
        wide(9, kpe),
    )
    chosen = torch.tensor(
        [[3, 0, -1], [1, -1, -1], [8, 5, 4], [-1, 6, -1], [-1, -1, -1]], dtype=torch.int32
    )
    run = load_run(FAMILIES["mla_sparse"].make(h=heads, ckv=ckv, kpe=kpe, topk=3), BLOCK=2)
    got = run(q_nope, q_pe, latent, rotated, chosen, 0.3)
    allowed = torch.zeros(5, 10, dtype=torch.bool).scatter_(1, chosen.long() % 10, True)[:, :9]
    query = torch.cat([q_nope, q_pe], -1).transpose(0, 1)
    key = torch.cat([latent, rotated], -1).expand(heads, -1, -1)
    value = latent.expand(heads, -1, -1)
    wanted = scaled_dot_product_attention(query, key, value, allowed, scale=0.3).transpose(0, 1)
    torch.testing.assert_close(got[:4], wanted[:4])
    assert not got[4].any(), "a query without any key"


@pytest.mark.parametrize("row", [-2, 9])
def test_sparse_latent_attention_refuses_rows_that_are_not_there(row):
    run = load_run(FAMILIES["mla_sparse"].make(h=1, ckv=2, kpe=2, topk=1))
    with pytest.raises(IndexError, match="outside of the 9 keys"):
        run(wide(1, 1, 2), wide(1, 1, 2), wide(9, 2), wide(9, 2), torch.tensor([[row]]), 1.0)


def test_softmax_routing_chooses_the_likeliest_and_gives_ties_to_the_lower_id():
    run = load_run(FAMILIES["moe_topk_softmax"].make(e=4, k=2))
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    weights, ids = run(logits, 2, True, 1.0)
    assert ids.tolist() == [[1, 3], [0, 1]]
    torch.testing.assert_close(weights, torch.full((2, 2), 0.5))
    weights, _ = run(logits, 2, False, 2.0)
    torch.testing.assert_close(weights[1], torch.full((2,), 0.5))


def test_grouped_sigmoid_routing_follows_deepseeks_gate_token_by_token():
    experts, k, groups, stay = 8, 3, 4, 2
    sizes = {"e": experts, "k": k, "groups": groups, "stay": stay}
    run = load_run(FAMILIES["moe_topk_grouped_sigmoid"].make(**sizes))
    logits, bias = wide(20, experts), wide(experts)
    weights, ids = run(logits, k, True, 2.5, bias, groups, stay)
    for t in range(20):
        score = [1 / (1 + math.exp(-float(x))) for x in logits[t]]
        choice = [s + float(b) for s, b in zip(score, bias, strict=True)]
        per = experts // groups
        totals = [sum(sorted(choice[g * per : g * per + per])[-2:]) for g in range(groups)]
        kept = sorted(range(groups), key=lambda g: -totals[g])[:stay]
        allowed = [e for e in range(experts) if e // per in kept]
        chosen = sorted(sorted(allowed, key=lambda e: -choice[e])[:k])
        assert ids[t].tolist() == chosen
        total = sum(score[e] for e in chosen)
        wanted = torch.tensor([2.5 * score[e] / total for e in chosen]).double()
        torch.testing.assert_close(weights[t], wanted)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_block_scaled_gemm_multiplies_what_quantisation_leaves(power_of_two):
    run = load_run(FAMILIES["block_scaled_gemm"].make(n=130, k=200), BLOCK=128)
    a, w = torch.randn(3, 200), torch.randn(130, 200).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 2) + 0.5
    got = run(a, w, scales, power_of_two)
    left = torch.empty(3, 200)
    for row in range(3):
        for start, end in ((0, 128), (128, 200)):
            scale = max(abs(float(x)) for x in a[row, start:end]) / 448
            scale = 2.0 ** math.ceil(math.log2(scale)) if power_of_two else scale
            codes = (a[row, start:end] / scale).to(torch.float8_e4m3fn)
            left[row, start:end] = codes.float() * scale
    right = torch.empty(130, 200)
    for n in range(130):
        for c in range(200):
            right[n, c] = float(w[n, c]) * float(scales[n // 128, c // 128])
    torch.testing.assert_close(got, left @ right.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("value", "largest", "code"), [(0.17578125, 7.5, 11.0), (2.390625, 6.375, 176.0)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_block_scaled_gemm_breaks_ties_as_an_h200_was_seen_to(value, largest, code, dtype):
    """Of SGLang 0.5.23's DeepSeek; divided by the scale, or exactly, either would be one less."""
    run = load_run(FAMILIES["block_scaled_gemm"].make(n=1, k=128), BLOCK=128)
    a = torch.zeros(1, 128, dtype=dtype)
    a[0, 0], a[0, 1] = value, largest
    w = torch.zeros(1, 128).to(torch.float8_e4m3fn)
    w[0, 0] = 1.0
    got = run(a, w, torch.ones(1, 1), False)
    assert got.item() == pytest.approx(code * largest / 448, rel=2**-8)


def test_head_gate_is_neutral_at_zero():
    run = load_run(FAMILIES["head_gate"].make(h=2, d=3, dtype="fp32"))
    x = torch.randn(1, 4, 2, 3)
    assert torch.equal(run(x, torch.zeros(1, 4, 2)), x)
    logits = torch.randn(1, 4, 2)
    torch.testing.assert_close(run(x, logits), x * 2 * torch.sigmoid(logits)[..., None])


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("gated_delta_rule_extend", {"qk": 3, "v": 8, "d": 4}, "cannot share"),
        ("ragged_attention", {"h": 4, "d": 8, "kv": 3}, "cannot share"),
        ("moe_topk_softmax", {"e": 4, "k": 5}, "cannot choose 5 of 4"),
        (
            "moe_topk_grouped_sigmoid",
            {"e": 9, "k": 2, "groups": 4, "stay": 2},
            "do not fit 9 experts",
        ),
    ],
)
def test_parameters_that_make_no_sense_are_named(family, parameters, message):
    with pytest.raises(BadUsage, match=message):
        FAMILIES[family].make(**parameters)
