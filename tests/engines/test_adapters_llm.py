"""Qwen3-Next and DeepSeek-V3 in the real SGLang: their operators captured, and replayed.

On a CPU the gated delta rule's kernel and the routing's are stand-ins; the references come from the
published formulas, so these tests are about what is captured: the right tensors, before the state
is overwritten, and in the interface's order.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.engines.conftest import LLM_ON_CPU, Captured, Serve, Write

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def qwen(model: Write, serve: Serve) -> Captured:
    return serve(model("qwen3-next"), cases=("completion",), engine_arguments=LLM_ON_CPU)


@pytest.fixture(scope="module")
def deepseek(model: Write, serve: Serve) -> Captured:
    return serve(model("deepseek-v3"), cases=("completion",), engine_arguments=LLM_ON_CPU)


def captured(run: Captured) -> dict[str, set[int]]:
    """Definitions of this engine's own operators, with the steps they are captured in."""
    found: dict[str, set[int]] = {}
    for receipt in run.receipts:
        if not receipt["definition"].startswith("dense_gemm"):
            found.setdefault(receipt["definition"], set()).add(receipt["step"])
    return found


def assert_all_passed(run: Captured) -> None:
    replayed = run.summary.replayed
    assert replayed is not None and replayed.status == "passed"
    verdicts = run.rows("SELECT status, count(*) FROM replay GROUP BY status")
    assert [tuple(row) for row in verdicts] == [("passed", run.summary.capture.captures)]


def test_prefill_and_decode_of_the_gated_delta_rule_are_captured(qwen: Captured) -> None:
    found = captured(qwen)
    assert found["gdn_extend_qk2_v4_d32_k_last"] == {0}
    assert min(found["gdn_update_qk2_v4_d32_k_last"]) == 1


def test_full_attention_and_routing_are_captured(qwen: Captured) -> None:
    found = captured(qwen)
    assert {0, 1} <= found["ragged_attention_bf16_h4_kv2_d32"]
    assert {0, 1} <= found["moe_topk_softmax_bf16_e4_k2"]


def test_a_decode_starts_from_the_state_that_the_step_before_left(qwen: Captured) -> None:
    states = qwen.rows(
        "SELECT c.step, i.blob_sha256, o.blob_sha256 FROM capture c"
        " JOIN workload w ON w.id = c.workload_id JOIN definition d ON d.id = w.definition_id"
        " JOIN workload_input i ON i.workload_id = w.id AND i.name = 'state'"
        " JOIN capture_output o ON o.capture_id = c.id AND o.name = 'new_state'"
        " WHERE d.op_type = 'gdn' ORDER BY c.step"
    )
    assert len(states) >= 3
    for before, after in itertools.pairwise(states):
        assert after[0] == before[0] + 1
        assert after[1] == before[2] != before[1]


def test_everything_of_qwen3_next_replays(qwen: Captured) -> None:
    assert_all_passed(qwen)


def test_latent_attention_and_grouped_routing_are_captured(deepseek: Captured) -> None:
    found = captured(deepseek)
    assert {0, 1} <= found["mla_absorbed_bf16_h4_ckv512_kpe64"]
    assert {0, 1} <= found["moe_topk_sigmoid_bf16_e8_k2_g2_of1"]


def test_everything_of_deepseek_v3_replays(deepseek: Captured) -> None:
    assert_all_passed(deepseek)


@pytest.mark.parametrize("kind", ["qwen3-next", "deepseek-v3"])
def test_two_ranks_capture_the_same_calls_and_lose_none(
    kind: str, model: Write, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without it SGLang wants a NUMA node a rank.
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    cases = tmp_path / "cases.toml"
    cases.write_text(
        '[[case]]\nname = "short"\nkind = "completion"\nprompt = "An old pond"\nmax_tokens = 2\n'
    )
    run = serve(
        model(kind),
        case_file=cases,
        engine_arguments=(*LLM_ON_CPU, "--tp-size", "2"),
        max_per_axes=0,
    )

    assert run.summary.capture.status == "passed", run.summary.capture.problems
    calls: dict[int, list[tuple[str, int, str]]] = {0: [], 1: []}
    for receipt in run.receipts:
        where = (receipt["definition"], receipt["step"], receipt["module_path"])
        calls[receipt["rank"]].append(where)
    assert sorted(calls[0]) == sorted(calls[1]) and calls[0]
    assert {step for _, step, _ in calls[0]} == {0, 1}
    assert_all_passed(run)
