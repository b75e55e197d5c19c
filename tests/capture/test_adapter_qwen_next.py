"""The qwen-next adapter on stand-ins of SGLang's classes, CUDA's packed decode among them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kclab import capture
from kclab.capture.adapters import qwen_next as adapter
from kclab.core.errors import EnvironmentLacking
from kclab.core.families.family import read_reference

from .conftest import Captured, MemoryRecorder, Tapped, current_tap

QK, V, D = 2, 4, 8
SLOTS = torch.tensor([3, 1])


def reference(family: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(read_reference(family), namespace)
    return namespace["run"]


def update(q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices):
    """One token a sequence."""
    run = reference("gated_delta_rule_update")
    gates = (A_log, a, dt_bias.float(), b)
    output, new = run(q[0], k[0], v[0], ssm_states[cache_indices], *gates, D**-0.5, True)
    ssm_states[cache_indices] = new
    return output[None]


class Dispatcher:
    """Computes with the published recurrence, and updates the pool in place as SGLang does."""

    supports_packed_decode = True

    def extend(
        self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc,
        inplace_update=True, **kwargs,
    ):  # fmt: skip
        run = reference("gated_delta_rule_extend")
        state = ssm_states[cache_indices]
        rows = (x[0] for x in (q, k, v))
        output, new = run(*rows, state, g[0], beta[0], query_start_loc, D**-0.5, True)
        ssm_states[cache_indices] = new
        return output[None], None, None

    def decode(self, q, k, v, a, b, *, query_start_loc, **given):
        return update(q, k, v, a, b, **given)

    def packed_decode(
        self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices,
        num_v_heads, head_v_dim, **kwargs,
    ):  # fmt: skip
        if not self.supports_packed_decode:
            return None
        q, k, v = mixed_qkv.split([QK * D, QK * D, V * D], dim=1)
        heads = (x.unflatten(1, (-1, D))[None] for x in (q, k, v))
        rest = {"ssm_states": ssm_states, "cache_indices": cache_indices}
        return update(*heads, a, b, A_log=A_log, dt_bias=dt_bias, **rest)


@pytest.fixture
def engine() -> Any:
    module = ModuleType("sglang_gdn")
    # A class of its own for each test, so that wrapping one leaves the others alone.
    own = {name: value for name, value in vars(Dispatcher).items() if not name.startswith("__")}
    module.GDNKernelDispatcher = type("GDNKernelDispatcher", (), own)  # type: ignore[attr-defined]
    return module


def armed(tapped: Tapped, instrument: Any, module: Any) -> MemoryRecorder:
    recorder = tapped(adapters=())
    instrument(module, current_tap())
    return recorder


def pool() -> Tensor:
    torch.manual_seed(5)
    return torch.randn(6, V, D, D)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def extend(module: Any, states: Tensor, **more: Any) -> Any:
    given = (noise(1, 5, QK, D), noise(1, 5, QK, D), noise(1, 5, V, D))
    gates = (-torch.rand(1, 5, V), torch.rand(1, 5, V))
    bounds = torch.tensor([0, 2, 5], dtype=torch.int32)
    rest = {"ssm_states": states, "cache_indices": SLOTS, "query_start_loc": bounds}
    with capture.request("r"):
        return module.GDNKernelDispatcher().extend(*given, *gates, **rest, **more)


def decode(module: Any, states: Tensor, packed: bool, indices: Tensor = SLOTS, **more: Any) -> Any:
    gates = {"A_log": torch.randn(V), "dt_bias": noise(V)}
    rest = {**gates, "ssm_states": states, "cache_indices": indices, **more}
    a, b = noise(2, V), noise(2, V)
    dispatcher = module.GDNKernelDispatcher()
    with capture.request("r"):
        if packed:
            sizes = {"scale": D**-0.5, "num_v_heads": V, "head_v_dim": D}
            return dispatcher.packed_decode(noise(2, (2 * QK + V) * D), a, b, **rest, **sizes)
        bounds = torch.arange(3, dtype=torch.int32)
        heads = (noise(1, 2, QK, D), noise(1, 2, QK, D), noise(1, 2, V, D))
        return dispatcher.decode(*heads, a, b, query_start_loc=bounds, **rest)


def assert_replays(captured: Captured) -> None:
    namespace: dict[str, Any] = {}
    exec(captured.call.definition.reference, namespace)
    ordered = [captured.inputs[name] for name in captured.call.definition.inputs]
    outputs = namespace["run"](*ordered)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for found, wanted in zip(outputs, captured.outputs.values(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_prefill_is_captured_with_the_states_of_before_and_after(
    tapped: Tapped, engine: Any
) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    states = pool()
    before = states.clone()
    extend(engine, states)
    (captured,) = recorder.captures
    assert captured.name == f"gdn_extend_qk{QK}_v{V}_d{D}_k_last"
    assert torch.equal(captured.inputs["state"], before[SLOTS])
    assert torch.equal(captured.outputs["new_state"], states[SLOTS])
    assert not torch.equal(before[SLOTS], states[SLOTS])
    assert_replays(captured)


@pytest.mark.parametrize("packed", [False, True], ids=["decode", "packed_decode"])
def test_decode_is_captured_once_however_the_engine_calls_it(
    tapped: Tapped, engine: Any, packed: bool
) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    states = pool()
    before = states.clone()
    decode(engine, states, packed)
    (captured,) = recorder.captures
    assert captured.name == f"gdn_update_qk{QK}_v{V}_d{D}_k_last"
    assert captured.call.operation.endswith(".packed_decode" if packed else ".decode")
    assert torch.equal(captured.inputs["state"], before[SLOTS])
    assert_replays(captured)


def test_states_in_bfloat16_have_definitions_of_their_own(tapped: Tapped, engine: Any) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    decode(engine, pool().bfloat16(), packed=False)
    assert recorder.names() == [f"gdn_update_qk{QK}_v{V}_d{D}_k_last_state_bf16"]


def test_kernel_without_packed_decode_is_left_to_decode(tapped: Tapped, engine: Any) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    engine.GDNKernelDispatcher.supports_packed_decode = False
    assert decode(engine, pool(), packed=True) is None
    assert recorder.captures == [] and recorder.errors == []


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda m: extend(m, pool(), inplace_update=False), "state not written back"),
        (lambda m: decode(m, pool(), True, replayssm_d=pool()), "state kept in parts"),
    ],
)
def test_what_is_not_the_plain_rule_is_refused_by_name(
    tapped: Tapped, engine: Any, run: Any, reason: str
) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    run(engine)
    assert recorder.captures == []
    assert [reason for _, reason in recorder.counts] == [reason]


def test_padded_sequences_are_refused_by_name(tapped: Tapped, engine: Any) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    decode(engine, pool(), packed=False, indices=torch.tensor([3, -1]))
    assert recorder.captures == []
    assert recorder.counts[f"gdn_update_qk{QK}_v{V}_d{D}_k_last", "padded sequences"] == 1


def test_installing_twice_captures_once(tapped: Tapped, engine: Any) -> None:
    recorder = armed(tapped, adapter.instrument_rule, engine)
    adapter.instrument_rule(engine, current_tap())
    extend(engine, pool())
    assert len(recorder.captures) == 1


@pytest.mark.parametrize("name", ["extend", "decode", "packed_decode"])
def test_release_without_a_target_is_refused_by_its_name(
    tapped: Tapped, engine: Any, name: str
) -> None:
    delattr(engine.GDNKernelDispatcher, name)
    with pytest.raises(EnvironmentLacking, match=rf"\.{name} is not in this release"):
        armed(tapped, adapter.instrument_rule, engine)


# attention


HEADS, KV, SIZE = 4, 2, 8


class Mode:
    def __init__(self, kind: str):
        self.kind = kind

    def is_decode(self) -> bool:
        return self.kind == "decode"

    def is_extend(self) -> bool:
        return self.kind != "decode"

    def is_target_verify(self) -> bool:
        return self.kind == "verify"


class Pools:
    """Keys and values of earlier tokens, scattered over a pool."""

    def __init__(self, keys: Tensor, values: Tensor, table: Tensor):
        self.token_to_kv_pool = SimpleNamespace(
            get_key_buffer=lambda layer: keys, get_value_buffer=lambda layer: values
        )
        self.req_to_token_pool = SimpleNamespace(req_to_token=table)


def attention_engine(pools: Pools) -> Any:
    module = ModuleType("sglang_radix")

    class RadixAttention(nn.Module):
        tp_q_head_num, tp_k_head_num, qk_head_dim, v_head_dim = HEADS, KV, SIZE, SIZE
        scaling, layer_id, logit_cap, sliding_window_size = 0.5, 7, 0.0, -1
        is_cross_attention, attn_type = False, SimpleNamespace(value="decoder")

        def forward(self, q, k, v, forward_batch, save_kv_cache=True, **kwargs):
            return torch.zeros(q.shape[0], self.tp_q_head_num * self.v_head_dim, dtype=q.dtype)

    module.RadixAttention = RadixAttention  # type: ignore[attr-defined]
    module.get_attn_backend = lambda: pools  # type: ignore[attr-defined]
    return module


def pools() -> Pools:
    table = torch.zeros(3, 16, dtype=torch.int32)
    table[2, :4] = torch.tensor([9, 2, 7, 5])
    table[0, :3] = torch.tensor([1, 8, 3])
    return Pools(noise(12, KV, SIZE), noise(12, KV, SIZE), table)


def batch(kind: str, queries: list[int], keys: list[int]) -> Any:
    return SimpleNamespace(
        forward_mode=Mode(kind),
        seq_lens_cpu=torch.tensor(keys),
        seq_lens=torch.tensor(keys),
        extend_seq_lens_cpu=queries,
        extend_seq_lens=torch.tensor(queries),
        req_pool_indices=torch.tensor([2, 0]),
        encoder_lens=None,
    )


def attend(module: Any, kind: str, queries: list[int], keys: list[int], **more: Any) -> Any:
    total = sum(queries)
    q, k, v = noise(total, HEADS * SIZE), noise(total, KV * SIZE), noise(total, KV * SIZE)
    with capture.request("r"):
        module.RadixAttention().forward(q, k, v, batch(kind, queries, keys), **more)
    return k


def test_keys_of_each_sequence_are_gathered_with_the_new_ones_last(tapped: Tapped) -> None:
    held = pools()
    module = attention_engine(held)
    recorder = armed(tapped, adapter.instrument_attention, module)
    k = attend(module, "extend", [2, 3], [6, 3])
    (captured,) = recorder.captures
    buffer = held.token_to_kv_pool.get_key_buffer(7)
    rows = k.reshape(-1, KV, SIZE)
    wanted = torch.cat([buffer[[9, 2, 7, 5]], rows[:2], rows[2:]])
    assert torch.equal(captured.inputs["K"], wanted)
    assert captured.inputs["qo_indptr"].tolist() == [0, 2, 5]
    assert captured.inputs["kv_indptr"].tolist() == [0, 6, 9]
    assert (captured.name, captured.call.variant) == (
        f"ragged_attention_bf16_h{HEADS}_kv{KV}_d{SIZE}",
        "prefill",
    )


def test_decode_has_one_query_a_sequence(tapped: Tapped) -> None:
    module = attention_engine(pools())
    recorder = armed(tapped, adapter.instrument_attention, module)
    attend(module, "decode", [1, 1], [5, 4])
    (captured,) = recorder.captures
    assert captured.inputs["kv_indptr"].tolist() == [0, 5, 9]
    assert captured.call.variant == "decode"


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ({"sliding_window_size": 128}, {}, "sliding window"),
        ({"logit_cap": 30.0}, {}, "capped logits"),
        ({}, {"sinks": torch.ones(1)}, "with sinks"),
        ({}, {"topk_indices": torch.ones(1)}, "sparse: each query chooses its keys"),
    ],
)
def test_other_attention_is_refused_by_name(
    tapped: Tapped, change: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    module = attention_engine(pools())
    for name, value in change.items():
        setattr(module.RadixAttention, name, value)
    recorder = armed(tapped, adapter.instrument_attention, module)
    attend(module, "extend", [2, 3], [6, 3], **more)
    assert recorder.counts["RadixAttention", reason] == 1


def test_keys_that_devices_share_are_refused_by_name(
    tapped: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: SimpleNamespace(attn_dcp_size=2)  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, context.__name__, context)
    module = attention_engine(pools())
    recorder = armed(tapped, adapter.instrument_attention, module)
    attend(module, "extend", [2, 3], [6, 3])
    assert recorder.counts["RadixAttention", "keys split over several devices"] == 1


def test_draft_verification_and_padding_are_refused_by_name(tapped: Tapped) -> None:
    module = attention_engine(pools())
    recorder = armed(tapped, adapter.instrument_attention, module)
    attend(module, "verify", [2, 3], [6, 3])
    with capture.request("r"):
        module.RadixAttention().forward(
            noise(8, HEADS * SIZE), None, None, batch("extend", [2, 3], [6, 3])
        )
    assert {reason for _, reason in recorder.counts} == {
        "neither plain prefill nor decode",
        "padded tokens",
    }


def test_a_quantised_cache_is_refused_by_name(tapped: Tapped) -> None:
    held = pools()
    quantised = held.token_to_kv_pool.get_key_buffer(7).to(torch.float8_e4m3fn)
    module = attention_engine(Pools(quantised, quantised, held.req_to_token_pool.req_to_token))
    recorder = armed(tapped, adapter.instrument_attention, module)
    attend(module, "extend", [2, 3], [6, 3])
    assert recorder.captures == []
    assert "keys and values kept as float8_e4m3fn" in {reason for _, reason in recorder.counts}


# routing


def routing_engine() -> Any:
    module = ModuleType("sglang_topk")

    def select_experts(
        hidden_states, router_logits, topk_config, *, layer_id=None,
        num_token_non_padded=None, expert_location_dispatch_info=None,
    ):  # fmt: skip
        weights, ids = router_logits.float().softmax(-1).topk(topk_config.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return SimpleNamespace(topk_weights=weights, topk_ids=ids, router_logits=router_logits)

    module.select_experts = select_experts  # type: ignore[attr-defined]
    return module


def config(**more: Any) -> Any:
    plain = {
        "top_k": 3,
        "use_grouped_topk": False,
        "topk_group": None,
        "num_expert_group": None,
        "renormalize": True,
        "custom_routing_function": None,
        "correction_bias": None,
        "routed_scaling_factor": None,
        "apply_routed_scaling_factor_on_output": False,
        "scoring_func": "softmax",
        "num_shared_topk_slots": 0,
    }
    return SimpleNamespace(**(plain | more))


def route(module: Any, given: Any, **more: Any) -> None:
    torch.manual_seed(0)
    with capture.request("r"):
        module.select_experts(None, noise(6, 8) * 3, given, **more)


def test_experts_are_captured_in_the_order_of_their_ids(tapped: Tapped) -> None:
    module = routing_engine()
    recorder = armed(tapped, adapter.instrument_routing, module)
    route(module, config(), num_token_non_padded=torch.tensor(6))
    (captured,) = recorder.captures
    assert captured.name == "moe_topk_softmax_bf16_e8_k3"
    ids = captured.outputs["topk_ids"]
    assert torch.equal(ids, ids.sort(dim=1).values)
    assert_replays(captured)


@pytest.mark.parametrize(
    ("given", "more", "reason"),
    [
        ({}, {"num_token_non_padded": torch.tensor(4)}, "padded tokens"),
        ({}, {"expert_location_dispatch_info": object()}, "experts placed elsewhere"),
        ({"num_shared_topk_slots": 1}, {}, "shared experts among the routed"),
        ({"scoring_func": "sqrtsoftplus"}, {}, "scores by sqrtsoftplus"),
        ({"use_grouped_topk": True}, {}, "groups without a bias"),
    ],
)
def test_other_routing_is_refused_by_name(
    tapped: Tapped, given: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    module = routing_engine()
    recorder = armed(tapped, adapter.instrument_routing, module)
    route(module, config(**given), **more)
    assert recorder.captures == []
    assert recorder.counts["moe routing", reason] == 1
