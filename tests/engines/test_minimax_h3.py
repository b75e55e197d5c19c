"""MiniMax-H3 in the real SGLang, with every part of its pipeline: FC2 captured, replayed, swept."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from kclab.capture.options import CaptureOptions
from kclab.db.check import check
from kclab.fc2.problem import Precision
from kclab.serving.files import file_path
from tests.engines.conftest import Captured, Serve, Write

pytestmark = pytest.mark.engines

CASES = """
[[case]]
name = "teapot"
kind = "video"
prompt = "A red teapot."
size = "64x32"
seconds = 4

[[case]]
name = "moving"
kind = "video"
prompt = "It moves."
size = "32x32"
seconds = 4
[case.payload]
task = "fl2va"
conditions = [{ type = "image", uri = "FIRST", role = "keyframe", frame_index = 0 }]
"""
REQUESTS = ("teapot", "moving")
STEPS, BLOCKS = (0, 2), (0, 1)
CALLS = len(REQUESTS) * len(STEPS) * len(BLOCKS)
"""Of FC2, and of attention."""
WIDTH, INNER, HEADS = 256, 512, 2
FRAMES = 107
"""Four seconds of 24, made up to 17 n + 5."""
SOUND = 2 * 178
"""Tokens: two channels of 40 a second."""
TOKENS = {
    "teapot": 13 + SOUND + 32 * 2,
    "moving": len("<Picture 1>: ") + 3 + 9 + 1 + SOUND + 32,
}
"""Text (a byte each; beside a keyframe its label, and its one token between marks), the keyframe as
a patch, sound, and 32 latent frames of patches."""
PADDED = 448
"""To a multiple of 64: rows that belong to nobody, which the GEMMs compute all the same."""

Start = Callable[..., Captured]


@pytest.fixture(scope="module")
def start(model: Write, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`start(engine option, …)` captures two steps of four, each block by itself.

    Of a text's video, and of one that begins with an image.
    """
    folder = tmp_path_factory.mktemp("cases")
    first, file = folder / "first.png", folder / "cases.toml"
    Image.new("RGB", (32, 32), "red").save(first)
    file.write_text(CASES.replace("FIRST", str(first)))

    def run(*engine: str, cases: tuple[str, ...] = REQUESTS) -> Captured:
        path = model("minimax-h3")
        projection = ("--component-paths.conditioning_projection", str(path / "projection"))
        return serve(
            path,
            cases=cases,
            case_file=file,
            inference_steps=4,
            capture=CaptureOptions(adapters=(), define_missing=True, steps=STEPS, per="site"),
            engine_arguments=(*projection, *engine),
        )

    return run


@pytest.fixture(scope="module")
def captured(start: Start) -> Captured:
    return start()


def checkpoint_weight(model: Write, module: str) -> Tensor:
    part = model("minimax-h3") / "FL2VA" / "transformer"
    with safe_open(part / "diffusion_pytorch_model.safetensors", "pt") as file:
        return file.get_tensor(f"{module}.weight")


def test_videos_are_kept_with_their_sound_at_the_size_that_was_asked_for(
    captured: Captured,
) -> None:
    sizes = []
    for (outputs,) in captured.rows(
        "SELECT json_extract(response, '$.outputs') FROM request ORDER BY id"
    ):
        (video,) = json.loads(outputs)
        data = file_path(captured.store, video["sha256"], ".mp4").read_bytes()
        assert hashlib.sha256(data).hexdigest() == video["sha256"]
        assert video["seconds"] == pytest.approx(FRAMES / 24, abs=0.03)
        sizes.append((video["width"], video["height"], video["tracks"]))
    assert sizes == [(64, 32, 2), (32, 32, 2)]


def test_fc2_of_every_block_is_captured_in_exactly_the_selected_steps(captured: Captured) -> None:
    found = captured.of_family("fc2")
    assert places(found) == sorted(product(REQUESTS, STEPS, modules("mlp.fc2")))
    assert {r["definition"] for r in found} == {f"fc2_bf16_n{WIDTH}_k{INNER}"}
    assert {r["axes"]["M"] for r in found} == {PADDED}


def places(receipts: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return sorted((r["request_id"], r["step"], r["module_path"]) for r in receipts)


def modules(end: str) -> list[str]:
    return [f"blocks.{block}.{end}" for block in BLOCKS]


def test_fc2_has_the_checkpoints_weights_and_each_calls_own_activation(
    captured: Captured, model: Write
) -> None:
    digests = set()
    for receipt in captured.of_family("fc2"):
        weight = captured.tensor(receipt["inputs"]["weight"])
        assert torch.equal(weight, checkpoint_weight(model, receipt["module_path"]))
        activation = captured.tensor(receipt["inputs"]["activation"]).float()
        assert activation.shape == (PADDED, INNER)
        assert activation[: TOKENS[receipt["request_id"]]].abs().mean() > 0.01
        digests.add(digest(activation))
    assert len(digests) == CALLS


def digest(tensor: Tensor) -> bytes:
    return hashlib.sha256(tensor.float().numpy()).digest()


def test_attention_is_captured_with_the_padding_as_a_document_of_its_own(
    captured: Captured,
) -> None:
    found = captured.of_family("ragged_attention")
    assert places(found) == sorted(product(REQUESTS, STEPS, modules("attn")))
    for receipt in found:
        assert receipt["definition"] == f"ragged_attention_bf16_h{HEADS}_kv{HEADS}_d128"
        bounds = captured.tensor(receipt["inputs"]["qo_indptr"])
        assert bounds.tolist() == [0, TOKENS[receipt["request_id"]], PADDED]


def test_everything_captured_replays_and_passes(captured: Captured) -> None:
    captured.require_all_passed(2 * CALLS)


def test_a_captured_fc2_is_a_boundary_that_a_sweep_takes(captured: Captured) -> None:
    (chosen,) = captured.rows(
        "SELECT w.id, w.uuid FROM capture c JOIN workload w ON w.id = c.workload_id"
        " WHERE c.module_path = 'blocks.1.mlp.fc2' AND json_extract(c.receipt, '$.step') = 2"
        " AND json_extract(c.receipt, '$.request_id') = 'teapot'"
    )
    database = ("--db", str(captured.store.database))
    sweep = ("fc2", "sweep", "--backend", "cpu", "--budget", "5s", chosen["uuid"])
    done = subprocess.run(
        [sys.executable, "-m", "kclab", *database, *sweep],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{PADDED}x{WIDTH}x{INNER}" in done.stdout and "exact" in done.stdout
    (boundary,) = captured.rows(
        "SELECT precision, m, m_padded, n, k, source, block FROM fc2_boundary"
        f" WHERE workload_id = {chosen['id']}"
    )
    assert tuple(boundary[:5]) == (Precision.BF16.value, PADDED, PADDED, WIDTH, INNER)
    assert tuple(boundary[5:]) == ("captured", 1)


def test_receipts_name_engine_model_request_and_worker(captured: Captured) -> None:
    for receipt in captured.receipts:
        assert (receipt["engine"], receipt["engine_version"]) == ("SGLang", "0.5.23")
        assert receipt["model"] == "minimax-h3"
        request = receipt["request"]
        task = "t2va" if receipt["request_id"] == "teapot" else "fl2va"
        assert (request["model"], request["task"]) == ("MiniMax-H3", task)
        assert request["target"]["short_edge"] == 32
        assert receipt["rank"] == 0 and receipt["process_id"] in captured.workers


def test_every_process_drained_and_is_gone(captured: Captured) -> None:
    captured.require_nothing_left()


def test_store_is_sound(captured: Captured) -> None:
    assert not check(captured.store).faults


def test_two_devices_that_share_the_tokens_capture_fc2_of_theirs_and_whole_heads(
    start: Start,
) -> None:
    captured = start("--num-gpus", "2", cases=("teapot",))
    captured.require_all_passed(2 * CALLS)
    queries = set()
    for rank in (0, 1):
        mine = [r for r in captured.receipts if r["rank"] == rank]
        fc2 = [r for r in mine if r["definition"] == f"fc2_bf16_n{WIDTH}_k{INNER}"]
        assert places(fc2) == sorted(product(("teapot",), STEPS, modules("mlp.fc2")))
        assert {r["axes"]["M"] for r in fc2} == {PADDED // 2}
        heads = HEADS // 2
        attention = f"ragged_attention_bf16_h{heads}_kv{heads}_d128"
        found = [r for r in mine if r["definition"] == attention]
        assert places(found) == sorted(product(("teapot",), STEPS, modules("attn")))
        for receipt in found:
            bounds = captured.tensor(receipt["inputs"]["qo_indptr"])
            assert bounds.tolist() == [0, TOKENS["teapot"], PADDED]
            queries.add(digest(captured.tensor(receipt["inputs"]["Q"])))
    assert len(queries) == CALLS
