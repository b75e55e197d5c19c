"""Capturing from a server that somebody else started with KCLAB_ATTACH set."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kclab.capture.orders import attach, attached_plan
from kclab.core.errors import BadUsage, EngineFailed, EnvironmentLacking
from kclab.serving.requests import Client
from kclab.serving.service import ServeSummary
from tests.serving.conftest import Mode, Stub, is_running
from tests.serving.test_capture import DEFINE, receipts


def run_server(stubbed: Stub, **environment: str) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        [stubbed.program, "serve", "--port", str(stubbed.port)],
        env={**os.environ, **environment},
    )
    client = Client(f"http://127.0.0.1:{stubbed.port}", 5)
    deadline = time.monotonic() + 60
    while not client.is_healthy():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return server


@pytest.fixture
def server(stub: Mode, tmp_path: Path) -> Iterator[Stub]:
    """A running server with the plugin."""
    stubbed = stub("torch,plugin")
    process = run_server(stubbed, KCLAB_ATTACH=str(tmp_path / "attach"))
    yield stubbed
    process.kill()
    process.wait()


def capture(stubbed: Stub, **options: Any) -> ServeSummary:
    options = {"attach_folder": stubbed.folder / "attach", "capture": DEFINE, **options}
    return stubbed.serve(attach=f"http://127.0.0.1:{stubbed.port}", **options)


def test_running_server_is_captured_from_again_and_again(server: Stub) -> None:
    for number in (1, 2):
        summary = capture(server)
        assert summary.capture.status == "passed", summary.capture.problems
        assert len(receipts(server)) == number
    assert is_running(server.pids[0])
    assert "--port" in receipts(server)[0]["server_command"]
    assert not list(server.store.database.parent.glob(".kclab-run/*"))


def test_requests_of_others_are_not_captured(server: Stub) -> None:
    capture(server)
    Client(f"http://127.0.0.1:{server.port}", 5).post("/v1/images/generations", {}, None, int)
    assert len(receipts(server)) == 1


def test_attached_server_without_the_plugin_is_named(
    stub: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.serving.service.ARM_SECONDS", 0.5)
    stubbed = stub("torch")
    process = run_server(stubbed)
    try:
        with pytest.raises(EngineFailed, match="worker without kclab's plugin"):
            capture(stubbed)
        assert is_running(process.pid)
        assert not stubbed.requests
    finally:
        process.kill()
        process.wait()


def test_attaching_needs_the_folder_and_a_server(stub: Mode) -> None:
    stubbed = stub("")
    with pytest.raises(EnvironmentLacking, match="no healthy server"):
        capture(stubbed)
    with pytest.raises(BadUsage, match="KCLAB_ATTACH"):
        capture(stubbed, attach_folder=None)


def test_one_capture_is_attached_at_a_time(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    with attach(tmp_path / "attach", plan):
        assert attached_plan(tmp_path / "attach") == plan
        with (
            pytest.raises(EnvironmentLacking, match="another capture is attached"),
            attach(tmp_path / "attach", plan),
        ):
            pass
    assert attached_plan(tmp_path / "attach") is None


def test_plan_of_a_killed_kclab_is_attached_no_longer(tmp_path: Path) -> None:
    (tmp_path / "attached").write_text('{"plan": "/x/plan.json", "by": "host:999999999:1"}')
    assert attached_plan(tmp_path) is None
