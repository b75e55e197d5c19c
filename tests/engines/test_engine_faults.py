"""The real SGLang when things go wrong around it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kclab.core.errors import DatabaseProblem, EngineFailed
from kclab.db.check import check
from kclab.db.store import Store
from kclab.serving.requests import Client
from tests.engines.conftest import Serve, Write, small_cases
from tests.serving.conftest import free_port, gone

pytestmark = pytest.mark.engines


def test_killed_kclab_leaves_no_engine_and_a_sound_store(model: Write, tmp_path: Path) -> None:
    store = Store.at(tmp_path / "kclab.db")
    argv = [sys.executable, "-m", "kclab", "--db", str(store.database), "capture", "serve"]
    argv += ["--model-path", str(model("qwen-image")), "--case", "square", "--define-missing"]
    kclab = subprocess.Popen([*argv, "--port", str(free_port())])
    try:
        wait_for_request(store, kclab)
        family = [p.pid for p in psutil.Process(kclab.pid).children(recursive=True)]
    finally:
        kclab.kill()
        kclab.wait()

    assert len(family) >= 3 and gone(family, 20)
    report = check(store)  # bytes that no row names yet may lie there, for gc
    assert not report.database_damaged and not report.blobs_damaged


def wait_for_request(store: Store, kclab: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while not asked(store):
        assert kclab.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


def asked(store: Store) -> bool:
    try:
        connection = store.read()
    except DatabaseProblem:
        return False  # kclab is just making it
    try:
        return bool(connection.execute("SELECT count(*) FROM request").fetchone()[0])
    finally:
        connection.close()


def test_server_of_somebody_else_is_captured_from_unless_it_has_no_plugin(
    model: Write, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, port = tmp_path / "attach", free_port()
    options = {
        "attach": f"http://127.0.0.1:{port}",
        "attach_folder": attach,
        "case_file": small_cases(tmp_path, square=1),
        "replay": False,
    }
    server = start_server(model("qwen-image"), port, KCLAB_ATTACH=str(attach))
    try:
        for _ in range(2):
            assert serve(model("qwen-image"), **options).summary.capture.status == "passed"
    finally:
        end(server)

    monkeypatch.setattr("kclab.serving.service.ARM_SECONDS", 2.0)
    server = start_server(model("qwen-image"), port, KCLAB_ATTACH=str(attach), SGLANG_PLUGINS="x")
    try:
        with pytest.raises(EngineFailed, match=r"sgl_diffusion::scheduler .*SGLANG_PLUGINS=x"):
            serve(model("qwen-image"), **options)
    finally:
        end(server)


def start_server(model: Path, port: int, **environment: str) -> subprocess.Popen[bytes]:
    """`sglang serve`, as a user types it, in a session of its own."""
    program = Path(sys.executable).with_name("sglang")
    server = subprocess.Popen(
        [
            *(str(program), "serve", "--model-path", str(model), "--model-id", "Qwen-Image-2.1"),
            *("--host", "127.0.0.1", "--port", str(port), "--scheduler-port", str(port + 20)),
            *("--master-port", str(port + 21), "--attention-backend", "torch_sdpa"),
            *("--enable-torch-compile", "false", "--enable-breakable-cuda-graph", "false"),
            *("--warmup-mode", "off"),
        ],
        env={**os.environ, **environment},
        start_new_session=True,
        cwd=model.parent,
    )
    Client(f"http://127.0.0.1:{port}", 5).wait_until_healthy(240, lambda: None)
    return server


def end(server: subprocess.Popen[bytes]) -> None:
    family = [p.pid for p in psutil.Process(server.pid).children(recursive=True)]
    server.terminate()
    server.wait(30)
    assert gone(family, 20)
