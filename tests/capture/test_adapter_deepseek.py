"""The deepseek adapter on stand-ins: both forms of latent attention, routing, block-scaled FP8."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kclab import capture
from kclab.capture.adapters import deepseek as adapter
from kclab.capture.adapters.qwen_next import instrument_attention, instrument_routing
from kclab.core.errors import EnvironmentLacking
from kclab.core.families.family import read_reference

from .conftest import Tapped
from .test_adapter_qwen_next import (
    armed,
    assert_replays,
    batch,
    config,
    current_tap,
    noise,
    route,
    routing_engine,
)

HEADS, CKV, KPE, NOPE, VALUE = 3, 16, 4, 8, 8


def pools() -> Any:
    """Compressed keys of earlier tokens: 4 of the first sequence, 2 of the second."""
    buffer = noise(12, 1, CKV + KPE)
    table = torch.zeros(3, 16, dtype=torch.int32)
    table[2, :4], table[0, :2] = torch.tensor([9, 2, 7, 5]), torch.tensor([1, 8])
    return SimpleNamespace(
        token_to_kv_pool=SimpleNamespace(get_key_buffer=lambda layer: buffer),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )


def engine(held: Any, absorbed: bool) -> Any:
    """SGLang's RadixAttention as latent attention makes it, computing by the plain formula."""
    module = ModuleType("sglang_radix")

    class RadixAttention(nn.Module):
        tp_q_head_num, tp_k_head_num = HEADS, 1 if absorbed else HEADS
        qk_head_dim, v_head_dim = (CKV + KPE, CKV) if absorbed else (NOPE + KPE, VALUE)
        scaling, layer_id, logit_cap, sliding_window_size = 0.3, 1, 0.0, -1
        is_cross_attention, attn_type = False, SimpleNamespace(value="decoder")

        def forward(self, q, k, v, forward_batch, save_kv_cache=True, **kwargs):
            if absorbed:
                return latent(held, forward_batch, q, k, **kwargs)
            run = reference("ragged_attention")
            heads = (x.reshape(-1, HEADS, x.shape[-1] // HEADS) for x in (q, k, v))
            bounds = torch.tensor([0, 2, 5])
            return run(*heads, bounds, bounds, True, 0.3).flatten(1)

    module.RadixAttention = RadixAttention  # type: ignore[attr-defined]
    module.get_attn_backend = lambda: held  # type: ignore[attr-defined]
    return module


def reference(family: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(read_reference(family), namespace)
    return namespace["run"]


def latent(held: Any, forward_batch: Any, q: Tensor, k: Tensor, q_rope=None, k_rope=None) -> Tensor:
    """Each sequence's tokens in order, over one key that all heads share."""
    query = q.reshape(q.shape[0], HEADS, -1)
    query = query if q_rope is None else torch.cat([query, q_rope.reshape(-1, HEADS, KPE)], -1)
    key = k.reshape(k.shape[0], -1)
    key = key if k_rope is None else torch.cat([key, k_rope.reshape(-1, KPE)], -1)
    buffer, table = held.token_to_kv_pool.get_key_buffer(1), held.req_to_token_pool.req_to_token
    out, start = [], 0
    counts = zip(forward_batch.extend_seq_lens_cpu, forward_batch.seq_lens.tolist(), strict=True)
    for request, (queries, total) in zip((2, 0), counts, strict=True):
        past = buffer[table[request, : total - queries].long(), 0]
        keys = torch.cat([past, key[start : start + queries]]).float()
        for token in range(queries):
            seen = keys[: total - queries + token + 1]
            weights = torch.softmax(query[start + token].float() @ seen.T * 0.3, -1)
            out.append((weights @ seen[:, :CKV]).to(q.dtype).flatten())
        start += queries
    return torch.stack(out)


@pytest.mark.parametrize("split", [True, False], ids=["rotated part apart", "joined"])
def test_absorbed_attention_is_captured_over_compressed_keys(tapped: Tapped, split: bool) -> None:
    module = engine(pools(), absorbed=True)
    recorder = armed(tapped, instrument_attention, module)
    q, k = noise(5, HEADS, CKV + KPE), noise(5, 1, CKV + KPE)
    more = {"q_rope": q[..., CKV:], "k_rope": k[..., CKV:]} if split else {}
    given = (q[..., :CKV], k[..., :CKV]) if split else (q, k)
    forward_batch = batch("extend", [2, 3], [6, 5])
    with capture.request("r"):
        module.RadixAttention().forward(*given, k[..., :CKV], forward_batch, **more)
    (captured,) = recorder.captures
    assert captured.name == f"mla_absorbed_bf16_h{HEADS}_ckv{CKV}_kpe{KPE}"
    assert captured.inputs["ckv"].shape == (11, CKV)
    assert_replays(captured)


CHOSEN = torch.tensor(
    [[4, 0, 2], [5, -1, 1], [0, 2, -1], [3, 1, 2], [4, -1, -1]], dtype=torch.int32
)
"""Places in each query's own sequence, of 6 keys (two queries) and of 5 (three)."""
PLACES = torch.tensor([[9, 2, 7, 5, 3, 4], [1, 8, 3, 4, 6, 0]])
"""Slots of the pool that the two sequences have; 3 and 4 belong to both, as a prefix would."""


def sparse_engine(form: str) -> Any:
    """One whose attention sees the chosen keys alone, told in the back-end's form."""
    held = pools()
    held.req_to_token_pool.req_to_token[2, :6], held.req_to_token_pool.req_to_token[0, :6] = PLACES
    held.use_fused_topk = form != "own"
    name = "RAGGED" if form == "flat" else "PAGED"
    held.get_topk_transform_method = lambda mode: SimpleNamespace(name=name)
    module = engine(held, absorbed=True)

    def forward(self, q, k, v, forward_batch, save_kv_cache=True, *, topk_indices, **kwargs):
        query, out, start = q.reshape(5, HEADS, -1).float(), [], 0
        buffer = held.token_to_kv_pool.get_key_buffer(1)[:, 0].float()
        for own, (queries, total) in enumerate(((2, 6), (3, 5))):
            past = buffer[PLACES[own, : total - queries]]
            keys = torch.cat([past, k[start : start + queries, 0].float()])
            for token in range(start, start + queries):
                seen = keys[CHOSEN[token][CHOSEN[token] >= 0].long()]
                weights = torch.softmax(query[token] @ seen.T * 0.3, -1)
                out.append((weights @ seen[:, :CKV]).to(q.dtype).flatten())
            start += queries
        return torch.stack(out)

    module.RadixAttention.forward = forward
    return module


def in_form(form: str) -> Tensor:
    """`CHOSEN`, as an indexer of this form tells it."""
    sequence = torch.tensor([0, 0, 1, 1, 1])[:, None]
    told = {
        "own": CHOSEN,
        "slots": PLACES[sequence, CHOSEN.clamp(min=0).long()],
        "flat": CHOSEN + 6 * sequence,
    }[form]
    return torch.where(CHOSEN < 0, -1, told).to(torch.int32)


@pytest.mark.parametrize("form", ["own", "slots", "flat"])
def test_sparse_attention_is_captured_with_the_keys_that_each_query_chose(
    tapped: Tapped, form: str
) -> None:
    module = sparse_engine(form)
    recorder = armed(tapped, instrument_attention, module)
    q, k = noise(5, HEADS, CKV + KPE), noise(5, 1, CKV + KPE)
    with capture.request("r"):
        forward_batch = batch("extend", [2, 3], [6, 5])
        module.RadixAttention().forward(q, k, k, forward_batch, topk_indices=in_form(form))
    (captured,) = recorder.captures
    assert captured.name == f"mla_sparse_bf16_h{HEADS}_ckv{CKV}_kpe{KPE}_topk3"
    rows = torch.where(CHOSEN < 0, -1, CHOSEN + torch.tensor([0, 0, 6, 6, 6])[:, None])
    assert captured.inputs["sparse_indices"].tolist() == rows.tolist()
    assert_replays(captured)


@pytest.mark.parametrize(
    ("change", "told", "reason"),
    [
        ({}, CHOSEN[:3], "sparse: padded choice of keys"),
        ({"hisparse_coordinator": 1}, CHOSEN, "sparse: chosen keys of an unknown form"),
        ({"use_fused_topk": None}, CHOSEN, "sparse: chosen keys of an unknown form"),
        ({"dsa_prefill_impl": "flashmla_sparse_q8"}, CHOSEN, "sparse: computed in FP8"),
    ],
)
def test_other_sparse_attention_is_refused_by_name(
    tapped: Tapped, change: dict[str, Any], told: Tensor, reason: str
) -> None:
    module = sparse_engine("own")
    for name, value in change.items():
        setattr(module.get_attn_backend(), name, value)
    recorder = armed(tapped, instrument_attention, module)
    q, k = noise(5, HEADS, CKV + KPE), noise(5, 1, CKV + KPE)
    with capture.request("r"):
        forward_batch = batch("extend", [2, 3], [6, 5])
        module.RadixAttention().forward(q, k, k, forward_batch, topk_indices=told)
    assert not recorder.captures and recorder.counts["RadixAttention", reason] == 1


@pytest.mark.parametrize(("query", "row"), [(0, 7), (2, 5)], ids=["a later one", "an earlier one"])
def test_chosen_key_of_another_sequence_is_counted(tapped: Tapped, query: int, row: int) -> None:
    module = sparse_engine("flat")
    recorder = armed(tapped, instrument_attention, module)
    q, k = noise(5, HEADS, CKV + KPE), noise(5, 1, CKV + KPE)
    told = in_form("flat")
    told[query, 0] = row
    with capture.request("r"):
        forward_batch = batch("extend", [2, 3], [6, 5])
        module.RadixAttention().forward(q, k, k, forward_batch, topk_indices=told)
    name = f"mla_sparse_bf16_h{HEADS}_ckv{CKV}_kpe{KPE}_topk3"
    assert not recorder.captures
    assert recorder.counts[name, "a chosen key is not of its query's sequence"] == 1


def test_normal_attention_is_captured_with_its_expanded_keys(tapped: Tapped) -> None:
    module = engine(pools(), absorbed=False)
    recorder = armed(tapped, instrument_attention, module)
    given = (noise(5, HEADS, NOPE + KPE), noise(5, HEADS, NOPE + KPE), noise(5, HEADS, VALUE))
    with capture.request("r"):
        flat = (x.flatten(1) for x in given)
        module.RadixAttention().forward(*flat, batch("extend", [2, 3], [2, 3]), False)
    (captured,) = recorder.captures
    assert captured.name == (f"ragged_attention_bf16_h{HEADS}_kv{HEADS}_d{NOPE + KPE}_dv{VALUE}")
    assert_replays(captured)


def test_chunk_of_a_prefix_is_refused_by_name(tapped: Tapped) -> None:
    module = engine(pools(), absorbed=False)
    recorder = armed(tapped, instrument_attention, module)
    chunk = batch("extend", [2, 3], [6, 5])
    chunk.attn_attend_prefix_cache = True
    given = (noise(5, HEADS, NOPE + KPE), noise(5, HEADS, NOPE + KPE), noise(5, HEADS, VALUE))
    with capture.request("r"):
        module.RadixAttention().forward(*(x.flatten(1) for x in given), chunk, False)
    reason = "one chunk of a prefix, merged with others later"
    assert recorder.counts["RadixAttention", reason] == 1


def test_grouped_routing_is_captured_with_its_bias(tapped: Tapped) -> None:
    module = routing_engine()
    run = reference("moe_topk_grouped_sigmoid")

    def select_experts(hidden_states, router_logits, topk_config, *, layer_id=None):
        given = (router_logits, 2, True, 2.5, topk_config.correction_bias, 4, 2)
        weights, ids = run(*given)
        return SimpleNamespace(topk_weights=weights.flip(1), topk_ids=ids.flip(1))

    module.select_experts = select_experts
    recorder = armed(tapped, instrument_routing, module)
    grouped = config(
        top_k=2,
        use_grouped_topk=True,
        num_expert_group=4,
        topk_group=2,
        correction_bias=torch.randn(8),
        routed_scaling_factor=2.5,
        apply_routed_scaling_factor_on_output=True,
    )
    route(module, grouped)
    (captured,) = recorder.captures
    assert captured.name == "moe_topk_sigmoid_bf16_e8_k2_g4_of2"
    assert_replays(captured)


# block-scaled FP8


def fp8_engine() -> Any:
    module = ModuleType("sglang_fp8")
    run = reference("block_scaled_gemm")

    def triton_w8a8_block_fp8_linear(
        input, weight, block_size, weight_scale, input_scale=None, bias=None, act_scale_ue8m0=False
    ):
        rows = input.reshape(-1, input.shape[-1])
        return run(rows, weight, weight_scale, act_scale_ue8m0).view(*input.shape[:-1], -1)

    def deepgemm_w8a8_block_fp8_linear_with_fallback(
        input, weight, block_size, weight_scale, input_scale=None, bias=None
    ):
        return module.triton_w8a8_block_fp8_linear(
            input, weight, block_size, weight_scale, input_scale, bias
        )

    module.triton_w8a8_block_fp8_linear = triton_w8a8_block_fp8_linear  # type: ignore[attr-defined]
    module.deepgemm_w8a8_block_fp8_linear_with_fallback = (  # type: ignore[attr-defined]
        deepgemm_w8a8_block_fp8_linear_with_fallback
    )
    return module


def weight(n: int, k: int) -> tuple[Tensor, Tensor]:
    scales = torch.rand(-(-n // 128), -(-k // 128)) + 0.5
    return torch.randn(n, k).to(torch.float8_e4m3fn), scales


def multiply(module: Any, name: str, **more: Any) -> None:
    w, scales = weight(130, 200)
    with capture.request("r"):
        given = {"block_size": [128, 128], "weight_scale": scales, **more}
        getattr(module, name)(noise(2, 3, 200), w, **given)


@pytest.mark.parametrize(
    "name", ["triton_w8a8_block_fp8_linear", "deepgemm_w8a8_block_fp8_linear_with_fallback"]
)
def test_block_scaled_gemm_is_captured_once_in_every_back_end(tapped: Tapped, name: str) -> None:
    module = fp8_engine()
    recorder = armed(tapped, adapter.instrument_fp8, module)
    adapter.instrument_fp8(module, current_tap())
    multiply(module, name)
    (captured,) = recorder.captures
    assert captured.name == "block_scaled_gemm_fp8_bf16_n130_k200"
    assert (captured.call.operation, captured.call.variant) == (name, "rows_6")
    assert_replays(captured)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"input_scale": torch.ones(1)}, "activation quantised before"),
        ({"bias": torch.ones(130, dtype=torch.bfloat16)}, "with a bias"),
        ({"block_size": [1, 32]}, "blocks of another size"),
        ({"weight_scale": torch.ones(2, 2, dtype=torch.int32)}, "packed weight scales"),
    ],
)
def test_other_block_scaled_gemms_are_refused_by_name(
    tapped: Tapped, more: dict[str, Any], reason: str
) -> None:
    module = fp8_engine()
    recorder = armed(tapped, adapter.instrument_fp8, module)
    multiply(module, "triton_w8a8_block_fp8_linear", **more)
    assert recorder.captures == []
    assert recorder.counts["block_scaled_gemm", reason] == 1


def test_release_without_any_block_scaled_gemm_is_refused_by_name(tapped: Tapped) -> None:
    with pytest.raises(EnvironmentLacking, match="w8a8_block_fp8_linear is not in this release"):
        armed(tapped, adapter.instrument_fp8, ModuleType("sglang_fp8"))
