"""Qwen-Image-2.1 in the real SGLang: asked for images, captured, replayed, and gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclab.db.check import check
from kclab.serving.files import file_path
from tests.engines.conftest import Captured, Serve, Write, small_cases

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def captured(model: Write, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """The square, the edit of it, and two small images in one request."""
    return serve(
        model("qwen-image"),
        cases=("square", "edit", "pair"),
        case_file=small_cases(tmp_path_factory.mktemp("cases"), pair=2),
        steps=(0, 2),
    )


def test_all_requests_are_answered(captured: Captured) -> None:
    answered = {r.request_id: r.outputs for r in captured.summary.requests}
    assert answered == {"qwen_image21_square": 1, "qwen_image21_edit": 1, "pair_batch2": 2}


def test_everything_captured_replays_and_passes(captured: Captured) -> None:
    captured.require_all_passed()


def test_exactly_the_selected_steps_of_each_request_are_captured(captured: Captured) -> None:
    found = {(r["request_id"], r["step"]) for r in captured.receipts}
    requests = ("qwen_image21_square", "qwen_image21_edit", "pair_batch2")
    assert found == {(request, step) for request in requests for step in (0, 2)}


def test_gemms_and_attention_of_the_transformer_are_captured(captured: Captured) -> None:
    paths = {r["module_path"] for r in captured.receipts}
    assert {p.partition(".")[0] for p in paths if p} >= {"transformer_blocks", "proj_out"}
    families = {r["definition"].partition("_")[0] for r in captured.receipts}
    assert families == {"dense", "prefix"}
    names = {r["definition"] for r in captured.receipts if r["definition"].startswith("prefix")}
    assert names == {f"prefix_cached_block_causal_h2_d128{end}" for end in ("", "_prefix0")}


def test_receipts_name_engine_model_schedule_and_worker(captured: Captured) -> None:
    for receipt in captured.receipts:
        assert (receipt["engine"], receipt["engine_version"]) == ("SGLang", "0.5.23")
        assert receipt["model"] == "qwen-image"
        assert receipt["sampling_sigmas"] == [1.0, 0.75, 0.5, 0.25]
        assert receipt["request"]["num_inference_steps"] == 4
        assert receipt["rank"] == 0 and receipt["process_id"] in captured.workers
        assert receipt["torch_compile"] is False and receipt["cuda_graphs"] is False


def test_images_are_kept_at_the_size_that_was_asked_for(captured: Captured) -> None:
    sizes = []
    for (outputs,) in captured.rows(
        "SELECT json_extract(response, '$.outputs') FROM request ORDER BY id"
    ):
        for image in json.loads(outputs):
            assert file_path(captured.store, image["sha256"], ".png").is_file()
            sizes.append((image["width"], image["height"]))
    assert sizes == [(1024, 1024)] * 2 + [(128, 128)] * 2


def test_every_process_drained_and_is_gone(captured: Captured) -> None:
    captured.require_nothing_left()


def test_store_is_sound(captured: Captured) -> None:
    assert not check(captured.store).faults


def test_two_ranks_lose_nothing(model: Write, serve: Serve, tmp_path: Path) -> None:
    captured = serve(
        model("qwen-image"),
        case_file=small_cases(tmp_path, square=1),
        steps=(0, 2),
        engine_arguments=("--num-gpus", "2", "--tp-size", "2"),
        replay=False,
    )
    per_rank = captured.rows("SELECT rank, count(*) FROM capture GROUP BY rank ORDER BY rank")
    assert [row["rank"] for row in per_rank] == [0, 1]
    assert per_rank[0][1] == per_rank[1][1] > 0
    assert captured.summary.capture.status == "passed"
