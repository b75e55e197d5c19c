"""A server of videos: a job is asked after, and what it made is checked and kept."""

from __future__ import annotations

import json
import time

import pytest

from kclab.core.errors import EngineFailed
from kclab.serving.cases import Case, Kind
from kclab.serving.files import file_path
from kclab.serving.payloads import payload_of
from kclab.serving.videos import POLL_SECONDS, parse_mp4
from tests.serving.conftest import Mode, Stub
from tests.serving.test_faults import assert_over

FAULTS = [
    ("jobfails", "job job-0 failed: no VAE in sight"),
    ("jobnever", r"job job-0 was not done within 1 seconds \(in_progress, 40 %\)"),
    ("jobless", "names no job"),
    ("jobgone", "job job-0: the server answered HTTP 404: .*not found"),
    ("cutjob", "job job-0: the server answered HTTP 200: "),
    ("nofile", "video 1 of 1: the server answered HTTP 404"),
    ("notmp4", "video 1 of 1: not an MP4 file; it begins with 3c 68 74 6d 6c 3e"),
    ("cutmp4", "video 1 of 1: an MP4 file of .* bytes, damaged: its mdat part is cut off"),
    ("nomovie", "video 1 of 1: .* it has no headers"),
    ("few", "0 videos came, 1 were asked for"),
    ("many", "2 videos came, 1 were asked for"),
    ("diein:1,jobnever", "exit code 1 while it answered clip"),
    ("http500", "HTTP 500: .*no kernel image"),
    ("hang", "no answer within 1 seconds"),
]


def of_videos(stubbed: Stub, architecture: str = "LTX2Pipeline") -> Stub:
    """The stub with a model that makes videos."""
    index = {"_class_name": architecture, "transformer": ["diffusers", "StubTransformer"]}
    (stubbed.model / "model_index.json").write_text(json.dumps(index))
    return stubbed


@pytest.mark.parametrize(("words", "message"), FAULTS, ids=[f[0] for f in FAULTS])
def test_fault_ends_in_time_and_leaves_a_row_and_nothing_else(
    stub: Mode, words: str, message: str
) -> None:
    stubbed = of_videos(stub(words))
    started = time.monotonic()

    with pytest.raises(EngineFailed, match=message) as caught:
        stubbed.serve(cases=("clip",), request_seconds=1.0 if words in SLOW else 30.0)

    # The seconds are kclab's own, beside what a loaded machine takes to start processes.
    assert time.monotonic() - started < 8
    assert_over(stubbed, caught.value)
    (request,) = stubbed.requests
    assert "error" in request["response"] and request["finished_us"]
    assert request["response"]["elapsed_us"] >= (0.9e6 if words in SLOW else 0)


SLOW = ("hang", "jobnever")


def test_videos_lie_in_the_store_by_content_and_the_row_says_what_they_are(stub: Mode) -> None:
    stubbed = of_videos(stub(""))
    stubbed.serve(cases=("clip",), outputs=2)

    (request,) = stubbed.requests
    assert request["request_id"] == "clip_batch2"
    assert request["response"]["response"]["status"] == "completed"
    for video in request["response"]["outputs"]:
        assert (video["width"], video["height"], video["tracks"]) == (64, 32, 2)
        assert video["seconds"] == 4.042
        path = file_path(stubbed.store, video["sha256"], ".mp4")
        assert path.stat().st_size == video["bytes"]
        assert video["path"] == str(path.relative_to(stubbed.store.database.parent))
    assert request["response"]["actual_outputs"] == 2


def test_videos_request_lasts_until_its_job_is_done(stub: Mode) -> None:
    stubbed = of_videos(stub(""))
    stubbed.serve(cases=("clip",))

    (request,) = stubbed.requests
    elapsed = request["response"]["elapsed_us"]
    # The stub answers at once that the job is queued; kclab asks after it once.
    assert elapsed >= 0.9e6 * POLL_SECONDS
    assert request["finished_us"] - request["started_us"] == elapsed


def test_own_case_of_a_model_of_videos_is_the_clip(stub: Mode) -> None:
    stubbed = of_videos(stub(""))
    summary = stubbed.serve(cases=())
    assert [served.request_id for served in summary.requests] == ["clip"]


def test_ltx_is_told_size_and_seconds_and_no_guidance() -> None:
    case = Case("a", Kind.VIDEO, "p", size="768x512", seconds=5)
    told = payload_of(case, "ltx", 8, "LTX2Pipeline")
    assert (told["size"], told["seconds"], told["num_inference_steps"]) == ("768x512", 5, 8)
    assert "guidance_scale" not in told and "num_frames" not in told


def test_minimax_h3_is_told_a_target_in_its_own_words() -> None:
    case = Case("a", Kind.VIDEO, "p", size="1364x768", payload={"flow_shift": 8.0})
    told = payload_of(case, "h3", None, "MiniMaxH3Pipeline")
    target = {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": 4}
    assert (told["task"], told["conditions"], told["target"]) == ("t2va", [], target)
    assert told["flow_shift"] == 8.0
    # SGLang refuses a request for it that has any of these.
    assert not {"size", "seconds", "fps", "num_frames", "guidance_scale"} & set(told)


def test_length_of_64_bits_and_an_open_end_are_read() -> None:
    header = bytes([1]) + bytes(19) + (600).to_bytes(4, "big") + (1500).to_bytes(8, "big")
    movie = _box(b"mvhd", header) + _box(b"trak", _box(b"tkhd", bytes(76) + b"\0\x10\0\0" * 2))
    rest = (0).to_bytes(4, "big") + b"mdat" + b"to the end"
    video = parse_mp4(_box(b"ftyp", b"isom") + _box(b"moov", movie) + rest, "it")
    assert (video.width, video.height, video.seconds, video.tracks) == (16, 16, 2.5, 1)


def _box(kind: bytes, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + kind + body
