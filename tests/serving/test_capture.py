"""What a serving capture brings, on a stub whose workers really compute with torch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kclab.capture.options import CaptureOptions
from kclab.capture.orders import Orders
from kclab.core.errors import EngineFailed
from kclab.db.check import check
from kclab.db.store import Store
from kclab.serving.files import file_path
from kclab.serving.requests import Client
from tests.conftest import Cli
from tests.serving.conftest import Mode, Stub, gone, put_stub

DEFINE = CaptureOptions(adapters=("torch",), define_missing=True)


def receipts(stubbed: Stub) -> list[dict[str, Any]]:
    rows = stubbed.rows("SELECT receipt FROM capture ORDER BY id")
    return [json.loads(row[0]) for row in rows]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Stub]:
    """A capture of two requests, each followed by somebody else's; the tests only look at it."""
    folder = tmp_path_factory.mktemp("served")
    database = folder / "store" / "kclab.db"
    database.parent.mkdir()
    shutil.copyfile(empty_database, database)
    with pytest.MonkeyPatch.context() as monkeypatch:
        stubbed = put_stub(folder, Store.at(database), monkeypatch)("torch")
        others = Client(f"http://127.0.0.1:{stubbed.port}", 30)

        def meddle(line: str) -> None:
            if " answered after " in line:
                others.post("/v1/images/generations", {}, None, lambda: None)

        summary = stubbed.serve(meddle, cases=("square", "edit"), capture=DEFINE)
        assert summary.capture.status == "passed", summary.capture.problems
        assert summary.replayed is not None and summary.replayed.status == "passed"
        yield stubbed


def test_exactly_the_selected_steps_of_kclabs_requests_are_captured(served: Stub) -> None:
    found = [(r["request_id"], r["step"]) for r in receipts(served)]
    # Steps 4 and 7 are beyond the schedule.
    assert found == [("qwen_image21_square", 0), ("qwen_image21_edit", 0)]
    nobodys = served.rows(
        "SELECT sum(count) FROM capture_count WHERE outcome = 'no request'"
        " AND definition = 'StubTransformer'"
    )
    # A health probe is one call of the root here, somebody else's request two.
    assert nobodys[0][0] >= 1 + 2 * 2


def test_receipts_say_what_was_asked_and_of_what(served: Stub) -> None:
    square, edit = receipts(served)
    assert square["engine"] == "SGLang" and square["model"] == "model"
    assert square["server_command"][1] == "serve"
    assert square["sampling_sigmas"] == [1.0, 0.5]
    assert square["torch_compile"] is False and square["cuda_graphs"] is False
    assert square["capture_steps"] == [0]
    assert square["requested_outputs"] == 1
    assert square["request"]["num_inference_steps"] == 2
    assert edit["reference_image_sha256"] == edit["request"]["image"]["sha256"]
    assert "rank" not in square and square["process_id"] in served.pids


def test_images_lie_in_the_store_by_content(served: Stub) -> None:
    for request in served.requests:
        (image,) = request["response"]["outputs"]
        path = file_path(served.store, image["sha256"], ".png")
        assert path.stat().st_size == image["bytes"] == len(path.read_bytes())
        assert image["path"] == str(path.relative_to(served.store.database.parent))
        assert "b64_json" not in json.dumps(request["response"])
        assert request["response"]["actual_outputs"] == 1
        assert (image["width"], image["height"], image["channels"]) == (2, 1, 4)


def test_every_worker_acknowledged_and_drained(served: Stub) -> None:
    workers = served.rows("SELECT engine, acknowledged_us, drained_us FROM capture_worker")
    first = served.rows("SELECT min(started_us) FROM request")[0][0]
    last = served.rows("SELECT max(finished_us) FROM request")[0][0]
    assert len(workers) == 1
    assert workers[0]["acknowledged_us"] < first < last < workers[0]["drained_us"]


def test_nothing_is_left_but_the_store_and_the_log(served: Stub) -> None:
    folder = served.store.database.parent
    kept = {path.name for path in folder.iterdir() if not path.name.startswith("kclab.db-")}
    assert kept == {"kclab.db", "blob", "files", "runs"}
    uuid = served.rows("SELECT uuid FROM run WHERE command = 'capture'")[0][0]
    assert [path.name for path in (folder / "runs" / uuid).iterdir()] == ["server.log"]
    assert gone(served.pids, 0.5)


def test_worker_without_the_plugin_is_named_before_the_first_request(
    stub: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubbed = stub("torch")
    # -E: the bootstrap on PYTHONPATH does not reach it.
    program = stubbed.program
    program.write_text(program.read_text().replace(sys.executable, f"{sys.executable} -E", 1))
    monkeypatch.setattr("kclab.serving.service.ARM_SECONDS", 0.5)
    monkeypatch.setenv("SGLANG_PLUGINS", "other")

    with pytest.raises(EngineFailed, match=r"without kclab's plugin: .*SGLANG_PLUGINS=other"):
        stubbed.serve(capture=DEFINE)
    assert not stubbed.requests
    assert stubbed.run_row["status"] == "failed"


def test_worker_that_cannot_load_kclab_is_named_before_the_first_request(
    stub: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubbed = stub("torch")
    broken = tmp_path / "packages" / "kclab"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not here', name='kclab')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))

    with pytest.raises(EngineFailed, match=f"kclab is not installed for {sys.executable}"):
        stubbed.serve(capture=DEFINE)
    assert not stubbed.requests
    assert stubbed.run_row["status"] == "failed"


def test_selected_definition_that_never_came_fails_the_run(stub: Mode) -> None:
    capture = replace(DEFINE, definitions=("dense_gemm_bf16_nt_n5_k5",))
    summary = stub("torch").serve(capture=capture)
    assert summary.capture.status in ("failed", "empty")
    assert any("n5_k5" in problem for problem in summary.capture.problems)


def test_several_outputs_are_counted_and_named(stub: Mode) -> None:
    stubbed = stub("")
    summary = stubbed.serve(outputs=4)
    assert [(r.request_id, r.outputs) for r in summary.requests] == [
        ("qwen_image21_square_batch4", 4)
    ]
    assert stubbed.requests[0]["response"]["actual_outputs"] == 4


def test_language_model_answers_completions_and_chats(stub: Mode) -> None:
    stubbed = stub("")
    (stubbed.model / "model_index.json").unlink()
    (stubbed.model / "config.json").write_text('{"architectures": ["Stub"]}')
    stubbed.serve(cases=())
    assert [r["request_id"] for r in stubbed.requests] == ["completion", "chat"]
    assert all(r["response"]["outputs"][0]["characters"] == 2 for r in stubbed.requests)


def start(stubbed: Stub, *more: str) -> subprocess.Popen[bytes]:
    """`kclab capture serve` as a process of its own."""
    argv = [sys.executable, "-m", "kclab", "--db", str(stubbed.store.database)]
    argv += ["capture", "serve", "--model-path", str(stubbed.model), "--case", "square"]
    argv += ["--port", str(stubbed.port), "--define-missing", "--adapter", "torch", *more]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


def wait_for_request(stubbed: Stub) -> None:
    deadline = time.monotonic() + 60
    while not (stubbed.pids and stubbed.requests):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_kclab_leaves_no_engine_and_a_sound_store(stub: Mode) -> None:
    stubbed = stub("torch,hang,child")
    kclab = start(stubbed)
    wait_for_request(stubbed)
    kclab.kill()
    kclab.wait()

    assert len(stubbed.pids) == 2 and gone(stubbed.pids, 15)
    assert not check(stubbed.store).faults
    assert not stubbed.half_written()
    # The next capture clears what the killed one left in its control folder.
    stub("").serve()
    assert not list(stubbed.store.database.parent.glob(".kclab-run/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", ["hang", "hang,ignoreterm,child"])
def test_interrupted_kclab_ends_the_engine_and_says_so(stub: Mode, number: int, words: str) -> None:
    stubbed = stub(words)
    kclab = start(stubbed, "--grace", "2")
    wait_for_request(stubbed)
    os.kill(kclab.pid, number)

    assert kclab.wait(20) == 130
    assert gone(stubbed.pids, 0.5)
    assert stubbed.run_row["status"] == "interrupted"
    assert stubbed.requests[0]["response"]["error"]


def test_request_that_was_never_sent_has_an_end_too(
    stub: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stubbed = stub("")
    monkeypatch.setattr(Orders, "activate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stubbed.serve()
    (request,) = stubbed.requests
    assert request["response"]["error"] == "KeyboardInterrupt"
    assert request["finished_us"] and gone(stubbed.pids, 0.5)


def test_edit_alone_without_an_image_is_a_usage_error(stub: Mode, invoke: Cli) -> None:
    stubbed = stub("")
    output = invoke("capture", "serve", "--model-path", stubbed.model, "--case", "edit")
    assert output.code == 2
    assert "--reference-image" in output.err
    assert not stubbed.pids and not Path("kclab.db").exists()


def test_stub_without_torch_is_an_empty_capture(stub: Mode, invoke: Cli) -> None:
    stubbed = stub("")
    options = ("--case", "square", "--num-outputs", "2", "--port", stubbed.port)
    output = invoke("capture", "serve", "--model-path", stubbed.model, *options)
    assert output.code == 3
    assert "qwen_image21_square_batch2: 2 answered in" in output.err


def test_writer_that_hangs_is_named_with_what_waits_for_it(
    stub: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubbed = stub("stuck")
    monkeypatch.setattr("kclab.serving.workers.STILL_SECONDS", 1.0)
    monkeypatch.setattr("kclab.serving.service.FAILED_DRAIN_SECONDS", 0.5)

    told = r"stored nothing for 1 seconds: .*\(process .*\), 1 of 1 captures pending"
    with pytest.raises(EngineFailed, match=told):
        stubbed.serve(capture=DEFINE)

    assert stubbed.run_row["status"] == "failed" and gone(stubbed.pids, 0.5)
    assert not stubbed.half_written()
    (worker,) = stubbed.rows("SELECT note FROM capture_worker")
    assert "1 capture not yet stored" in worker["note"]
