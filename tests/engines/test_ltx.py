"""LTX-2.5 in the real SGLang, with every part of its pipeline: asked for videos, and captured."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from kclab.db.check import check
from kclab.serving.files import file_path
from tests.engines.conftest import Captured, Serve, Write

pytestmark = pytest.mark.engines

CASES = """
[[case]]
name = "boat"
kind = "video"
prompt = "A boat."
size = "128x64"
seconds = 1
outputs = 2

[[case]]
name = "sea"
kind = "video"
prompt = "The sea at night."
size = "64x96"
seconds = 2
payload = { quality = "exact" }  # then SGLang also gives the prompts' attentions their mask
"""
REQUESTS = ("boat_batch2", "sea")
STEPS = (0, 7)
BLOCKS = 2
VIDEO = ("attn1", "attn2")
AUDIO = ("audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")
PROMPT = 1024
"""Tokens: SGLang fills prompts up."""
TOKENS = {"boat_batch2": (3 * 2 * 4, 25), "sea": (6 * 3 * 2, 50)}
"""Of a video (latent frames x rows x columns) and of its sound (25 a second)."""


def case_file(folder: Path) -> Path:
    file = folder / "cases.toml"
    file.write_text(CASES)
    return file


@pytest.fixture(scope="module")
def captured(model: Write, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Two videos of one request, and one with masked prompts."""
    file = case_file(tmp_path_factory.mktemp("cases"))
    return serve(model("ltx"), case_file=file, steps=STEPS)


def test_videos_are_kept_with_their_sound_at_the_size_that_was_asked_for(
    captured: Captured,
) -> None:
    found = []
    for (outputs,) in captured.rows(
        "SELECT json_extract(response, '$.outputs') FROM request ORDER BY id"
    ):
        for video in json.loads(outputs):
            data = file_path(captured.store, video["sha256"], ".mp4").read_bytes()
            assert hashlib.sha256(data).hexdigest() == video["sha256"]
            found.append((video["width"], video["height"], video["tracks"], video["sha256"]))
    assert [video[:3] for video in found] == [(128, 64, 2)] * 2 + [(64, 96, 2)]
    assert len({video[3] for video in found}) == 3


@pytest.mark.parametrize("family", ["sdpa", "head_gate"])
def test_six_attentions_and_gates_are_captured_in_the_selected_steps(
    captured: Captured, family: str
) -> None:
    found = sorted((r["request_id"], r["step"], r["variant"]) for r in captured.of_family(family))
    assert found == sorted(product(REQUESTS, STEPS, VIDEO + AUDIO))


def test_each_attention_has_its_own_queries_and_keys(captured: Captured) -> None:
    for receipt in captured.of_family("sdpa"):
        video, audio = TOKENS[receipt["request_id"]]
        wanted = {
            "attn1": (video, video),
            "attn2": (video, PROMPT),
            "audio_attn1": (audio, audio),
            "audio_attn2": (audio, PROMPT),
            "audio_to_video_attn": (video, audio),
            "video_to_audio_attn": (audio, video),
        }[receipt["variant"]]
        axes = receipt["axes"]
        assert (axes["Sq"], axes["Sk"]) == wanted
        assert axes["B"] == (2 if receipt["request_id"] == "boat_batch2" else 1)


def test_masks_are_captured_where_the_engine_gave_them(captured: Captured) -> None:
    for receipt in captured.of_family("sdpa"):
        masked = receipt["request_id"] == "sea" and receipt["variant"].endswith("attn2")
        size = 64 if receipt["variant"] in VIDEO else 32
        end = "_mask_float" if masked else ""
        assert receipt["definition"] == f"sdpa_bf16_h2_kv2_d{size}{end}"


def test_feed_forward_gemms_are_captured_with_the_checkpoints_weights(
    captured: Captured, model: Write
) -> None:
    names = {
        "ff.proj_in": "dense_gemm_bf16_nt_n512_k128",
        "ff.proj_out": "dense_gemm_bf16_nt_n128_k512",
        "audio_ff.proj_in": "dense_gemm_bf16_nt_bias_n256_k64",
        "audio_ff.proj_out": "dense_gemm_bf16_nt_bias_n64_k256",
    }
    weights = model("ltx") / "transformer" / "diffusion_pytorch_model.safetensors"
    with safe_open(weights, "pt") as checkpoint:
        for end, definition in names.items():
            path = f"transformer_blocks.0.{end}"
            found = [r for r in captured.receipts if r["module_path"] == path]
            steps = sorted((r["request_id"], r["step"]) for r in found)
            assert steps == sorted(product(REQUESTS, STEPS)), path
            assert {r["definition"] for r in found} == {definition}
            for receipt in found:
                stored = captured.tensor(receipt["inputs"]["W"])
                assert torch.equal(stored, checkpoint.get_tensor(f"{path}.weight"))


def test_everything_captured_replays_and_passes(captured: Captured) -> None:
    captured.require_all_passed()


def test_coverage_accounts_for_every_attention_of_every_block(captured: Captured) -> None:
    for family in ("sdpa", "head_gate"):
        found = [c for c in captured.summary.capture.coverage if c.name.startswith(family)]
        calls = len(REQUESTS) * len(STEPS) * len(VIDEO + AUDIO)
        assert sum(c.captured for c in found) == calls
        # The second block's are the same calls again: the same axes, in the same step.
        assert sum(c.duplicates for c in found) == calls * (BLOCKS - 1)
        assert not any(c.skipped for c in found)


def test_receipts_name_engine_model_request_and_worker(captured: Captured) -> None:
    times = captured.rows("SELECT request_id, started_us, finished_us FROM request")
    spans = {row["request_id"]: (row["started_us"], row["finished_us"]) for row in times}
    for receipt in captured.receipts:
        assert (receipt["engine"], receipt["engine_version"]) == ("SGLang", "0.5.23")
        assert receipt["model"] == "ltx"
        assert receipt["request"]["model"] == "LTX-2.5-Diffusers"
        assert receipt["rank"] == 0 and receipt["process_id"] in captured.workers
        began, ended = spans[receipt["request_id"]]
        assert began <= receipt["captured_at"] * 1e6 <= ended


def test_every_process_drained_and_is_gone(captured: Captured) -> None:
    captured.require_nothing_left()


def test_store_is_sound(captured: Captured) -> None:
    assert not check(captured.store).faults


def test_two_devices_that_share_the_tokens_lose_nothing_and_say_what_they_left(
    model: Write, serve: Serve, tmp_path: Path
) -> None:
    captured = serve(
        model("ltx"),
        cases=("sea",),
        case_file=case_file(tmp_path),
        steps=STEPS,
        engine_arguments=("--num-gpus", "2", "--sp-degree", "2", "--ulysses-degree", "2"),
    )
    assert captured.summary.replayed is not None
    assert captured.summary.replayed.status == "passed"
    for family, names in (("head_gate", VIDEO + AUDIO), ("sdpa", ("attn2", "audio_attn2"))):
        found = sorted((r["rank"], r["step"], r["variant"]) for r in captured.of_family(family))
        assert found == sorted(product((0, 1), STEPS, names)), family
    left = {c.name: c.skipped for c in captured.summary.capture.coverage if c.skipped}
    calls = 2 * len(STEPS) * BLOCKS * (len(VIDEO + AUDIO) - 2)
    assert left == {"sdpa": {"tokens split over several devices": calls}}
