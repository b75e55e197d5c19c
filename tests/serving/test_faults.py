"""A server in trouble: each fault ends in time, its run's row says what happened, nothing stays."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from kclab.core.errors import EngineFailed, EnvironmentLacking, KclabError
from tests.serving.conftest import Mode, Stub, gone

FAULTS = [
    ("die:3", "exit code 3", 3.0),
    ("killed", "signal SIGBUS", 3.0),
    ("never", "did not become healthy within 1 seconds", 4.0),
    ("diein:1,hang", "exit code 1 while it answered qwen_image21_square", 4.0),
    ("hang", "no answer within 1 seconds", 4.0),
    ("http500", "HTTP 500: .*no kernel image", 3.0),
    ("html", "not JSON", 3.0),
    ("truncated", "no whole answer came", 3.0),
    ("few", "0 images came, 1 were asked for", 3.0),
    ("many", "2 images came, 1 were asked for", 3.0),
    ("listless", "no list of images", 3.0),
    ("foreign", "no base64", 3.0),
    ("url", "answered with a URL", 3.0),
    ("nullb64", "no image data", 3.0),
    ("empty", "no image data", 3.0),
    ("notpng", "not a PNG file", 3.0),
    ("cutpng", "cut off", 3.0),
]


@pytest.mark.parametrize(("words", "message", "seconds"), FAULTS, ids=[f[0] for f in FAULTS])
def test_fault_ends_in_time_and_leaves_a_row_and_nothing_else(
    stub: Mode, words: str, message: str, seconds: float
) -> None:
    stubbed = stub(words)
    started = time.monotonic()

    with pytest.raises(EngineFailed, match=message) as caught:
        stubbed.serve(start_seconds=limit(words, "never"), request_seconds=limit(words, "hang"))

    # The seconds are kclab's own, beside what a loaded machine takes to start processes.
    assert time.monotonic() - started < seconds + 4
    assert_over(stubbed, caught.value)


def limit(words: str, word: str) -> float:
    """A short limit where running into it is the fault."""
    return 1.0 if words == word else 30.0


def assert_over(stubbed: Stub, error: KclabError) -> None:
    row = stubbed.run_row
    assert row["status"] == "failed"
    assert row["summary"] == str(error).partition("\n")[0]
    assert stubbed.pids and gone(stubbed.pids, 0.5)
    assert not stubbed.half_written()
    assert not list(stubbed.store.database.parent.glob(".kclab-run/*"))


def test_death_is_told_with_the_last_lines_of_the_log(stub: Mode) -> None:
    with pytest.raises(EngineFailed, match="OutOfMemoryError: CUDA out of memory"):
        stub("die:3").serve()


def test_failed_request_keeps_its_receipt(stub: Mode) -> None:
    stubbed = stub("http500")
    with pytest.raises(EngineFailed):
        stubbed.serve()

    (request,) = stubbed.requests
    assert request["status_code"] == 500
    assert "no kernel image" in request["response"]["error"]
    assert request["payload"]["prompt"] and request["finished_us"] > request["started_us"]


def test_request_without_any_answer_keeps_its_receipt(stub: Mode) -> None:
    stubbed = stub("truncated")
    with pytest.raises(EngineFailed):
        stubbed.serve()

    (request,) = stubbed.requests
    assert request["status_code"] is None
    assert "no whole answer" in request["response"]["error"]


def test_nothing_is_asked_after_a_failure(stub: Mode) -> None:
    stubbed = stub("http500")
    with pytest.raises(EngineFailed):
        stubbed.serve(cases=("square", "landscape"))
    assert len(stubbed.requests) == 1


@pytest.mark.parametrize(
    ("offset", "purpose"), [(0, "HTTP"), (1, "broker"), (20, "scheduler"), (21, "master")]
)
def test_taken_port_is_found_before_the_engine_starts(
    stub: Mode, offset: int, purpose: str
) -> None:
    stubbed = stub("")
    taken = rf"{stubbed.port + offset} \({purpose}\) by"
    with (
        socket.create_server(("127.0.0.1", stubbed.port + offset)),
        pytest.raises(EnvironmentLacking, match=taken),
    ):
        stubbed.serve()
    assert stubbed.run_row["status"] == "failed"
    assert not stubbed.pids


def test_server_that_ignores_sigterm_is_killed_after_the_grace(stub: Mode) -> None:
    stubbed = stub("ignoreterm,child")
    started = time.monotonic()
    stubbed.serve(grace_seconds=1.0)
    assert time.monotonic() - started > 1.0
    assert len(stubbed.pids) == 2 and gone(stubbed.pids, 0.5)


@pytest.mark.parametrize("words", ["dataurl", "nopad", "newline"])
def test_disguised_image_is_kept_as_it_is(stub: Mode, words: str) -> None:
    plain = image_of(stub(""))
    assert image_of(stub(words)) == plain


def image_of(stubbed: Stub) -> dict[str, Any]:
    stubbed.serve()
    (image,) = stubbed.requests[-1]["response"]["outputs"]
    return dict(image)


def test_slow_start_is_waited_for_and_then_asked_once(stub: Mode) -> None:
    stubbed = stub("slow:1")
    stubbed.serve()
    assert len(stubbed.requests) == 1
