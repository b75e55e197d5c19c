"""A dense language model in the real SGLang's LLM runtime."""

from __future__ import annotations

import pytest

from tests.engines.conftest import LLM_ON_CPU, Captured, Serve, Write

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def captured(model: Write, serve: Serve) -> Captured:
    """A completion and a chat, all steps."""
    return serve(model("qwen3"), engine_arguments=LLM_ON_CPU, max_per_axes=0)


def test_completion_and_chat_are_answered(captured: Captured) -> None:
    assert [r.request_id for r in captured.summary.requests] == ["completion", "chat"]


def test_prefill_and_decoding_are_captured_and_pass(captured: Captured) -> None:
    rows = {receipt["variant"] for receipt in captured.receipts if receipt["step"] == 0}
    assert any(rows) and {r["step"] for r in captured.receipts} == set(range(8))
    replayed = captured.summary.replayed
    assert replayed is not None and replayed.status == "passed"


def test_health_probes_belong_to_nobody(captured: Captured) -> None:
    counted = captured.rows(
        "SELECT sum(count) FROM capture_count WHERE outcome = 'no request'"
        " AND definition = 'Qwen3ForCausalLM'"
    )
    assert counted[0][0] >= 1
