"""`kclab capture run` from the outside: real programs, real processes, the command's own words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kclab.db.check import check
from kclab.db.store import Store
from tests.capture.recording import Stored, stored_captures
from tests.conftest import Cli, Output

TOY = Path(__file__).with_name("toy_engine.py")
GEMM = "dense_gemm_fp32_nt_n3_k4"
ALL = ("--define-missing", "--max-per-axes", "0")


@dataclass(frozen=True)
class Ran:
    """A finished `capture run`."""

    output: Output
    store: Store

    @property
    def captures(self) -> list[Stored]:
        return list(stored_captures(self.store))

    def run_row(self) -> dict[str, Any]:
        return dict(self.rows("SELECT * FROM run")[-1])

    def rows(self, sql: str) -> list[Any]:
        connection = self.store.read()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def left(self) -> list[Path]:
        return list(self.store.database.parent.glob(".kclab-run/*"))


Capture = Callable[..., Ran]


def _capture(
    folder: Path, *argv: object, options: tuple[object, ...] = ALL, **environment: str
) -> Ran:
    """`kclab capture run OPTIONS -- python ARGV` in a folder."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kclab", "capture", "run"),
            *map(str, options),
            *("--", sys.executable),
            *map(str, argv),
        ],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    store = Store.at(folder / "kclab.db")
    return Ran(Output(done.returncode, done.stdout, done.stderr), store)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return lambda *argv, **options: _capture(tmp_path, *argv, **options)


MODES = ("plain", "inplace", "forward", "compile", "thread", "view")


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One program that makes the call in each way that hooks find hard."""
    return _capture(tmp_path_factory.mktemp("modes"), TOY, *MODES)


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One program whose calls happen in spawned and forked children."""
    return _capture(tmp_path_factory.mktemp("children"), TOY, "spawn", "twoproc", "fork")


def test_a_program_runs_to_its_end_and_the_run_passes(modes: Ran) -> None:
    assert modes.output.code == 0, modes.output.err
    row = modes.run_row()
    assert (row["command"], row["status"], row["exit_code"]) == ("capture", "passed", 0)
    assert row["summary"].startswith("6 captured, 1 definition, 1 process")


def test_the_programs_output_passes_through_untouched(modes: Ran) -> None:
    assert modes.output.out == "done\n"


@pytest.mark.parametrize("mode", MODES)
def test_the_true_input_and_output_are_captured(modes: Ran, mode: str) -> None:
    request = "program" if mode == "thread" else mode
    (stored,) = [s for s in modes.captures if s.row["request_id"] == request]
    assert stored.inputs["A"].tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert stored.outputs["C"].tolist() == [[20.0, 60.0, 100.0]]


def test_equal_content_is_one_workload_and_small_blobs(modes: Ran) -> None:
    assert len({s.workload for s in modes.captures}) == 1
    sizes = [path.stat().st_size for path in modes.store.blobs.root.rglob("*.safetensors")]
    assert len(sizes) == 3
    assert max(sizes) < 1024


def test_the_command_says_what_was_covered_and_what_to_do_next(modes: Ran) -> None:
    uuid = modes.run_row()["uuid"]
    assert GEMM in modes.output.err
    assert f"next: kclab replay --run {uuid[:13]}" in modes.output.err


def test_the_control_folder_is_gone_afterwards(modes: Ran, children: Ran) -> None:
    assert modes.left() == []
    assert children.left() == []


def test_the_run_keeps_its_command_and_payload(modes: Ran) -> None:
    params = json.loads(modes.run_row()["params"])
    assert params["command"][1:] == [str(TOY), *MODES]
    (stored,) = [s for s in modes.captures if s.row["request_id"] == "view"]
    assert stored.receipt["request"] == {"prompt": "view"}
    assert stored.receipt["server_command"] == params["command"]


def test_spawned_and_forked_children_are_captured_with_their_rank(children: Ran) -> None:
    assert children.output.code == 0, children.output.err
    stored = children.captures
    assert len({s.row["process_id"] for s in stored}) == 4
    assert len({s.workload for s in stored}) == 1
    assert len({s.row["uuid"] for s in stored}) == 4
    assert all(s.row["rank"] is not None for s in stored)
    assert len({s.row["rank"] for s in stored if s.row["rank"] in (1, 2)}) == 2


def test_every_worker_acknowledged_and_drained(children: Ran) -> None:
    workers = children.rows("SELECT * FROM capture_worker")
    assert len(workers) == 5
    assert all(worker["drained_us"] for worker in workers)
    assert all(worker["note"] is None for worker in workers)


def test_counts_are_kept_for_each_process(children: Ran) -> None:
    rows = children.rows("SELECT process, count FROM capture_count WHERE outcome = 'captured'")
    assert len(rows) == 4
    assert all(row["count"] == 1 for row in rows)


def test_a_forked_child_that_alone_imports_torch_drains(capture: Capture, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import multiprocessing\n"
        "def child():\n"
        "    import torch\n"
        "    torch.nn.functional.linear(torch.ones(1, 4), torch.ones(3, 4))\n"
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start()\n"
        "process.join()\n"
    )
    ran = capture(script)
    assert ran.output.code == 0, ran.output.err
    (worker,) = ran.rows("SELECT * FROM capture_worker")
    assert worker["drained_us"] is not None
    assert len(ran.captures) == 1


# When it does not go well


def test_a_program_that_fails_fails_the_run_and_keeps_the_captures(capture: Capture) -> None:
    ran = capture(TOY, "plain", "exit3")
    assert ran.output.code == 1
    assert "exit code 3" in ran.output.err
    assert ran.run_row()["status"] == "failed"
    assert len(ran.captures) == 1


def test_a_killed_process_loses_nothing_silently(capture: Capture) -> None:
    ran = capture(TOY, "many", "die")
    assert ran.output.code == 1
    assert "SIGKILL" in ran.output.err
    stored = len(ran.captures)
    lost = 200 - stored
    if lost:
        assert f"died with {lost} captures not yet stored" in ran.output.err
    report = check(ran.store)
    assert not report.database_damaged
    assert not report.blobs_damaged


def test_a_requested_definition_without_a_capture_fails_the_run(capture: Capture) -> None:
    ran = capture(
        TOY, "plain", options=("--define-missing", "--definition", "dense_gemm_fp32_nt_n9_k9")
    )
    assert ran.output.code == 3
    assert "0 of 1 requested definitions captured" in ran.output.err
    assert "no such call was seen" in ran.output.err
    assert ran.run_row()["status"] == "empty"


def test_a_definition_that_nobody_has_is_counted_by_name(capture: Capture) -> None:
    ran = capture(TOY, "plain", options=())
    assert ran.output.code == 3
    assert ran.run_row()["status"] == "empty"
    assert "no definition" in ran.output.err
    assert GEMM in ran.output.err


def test_a_program_without_torch_captures_nothing_and_says_why(capture: Capture) -> None:
    ran = capture("-c", "print('hello')")
    assert ran.output.code == 3
    assert ran.output.out == "hello\n"
    assert "no process of the program imported torch" in ran.output.err
    assert ran.run_row()["status"] == "empty"


def test_a_broken_install_ends_the_whole_run_by_name(capture: Capture, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys, time\n"
        "sys.modules['kclab.capture.session'] = None\n"
        "import torch\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    ran = capture(script)
    assert time.monotonic() - started < 50, "the program is not left running uncaptured"
    assert ran.output.code == 1
    assert f"kclab is not installed for {sys.executable}" in ran.output.err
    assert ran.run_row()["status"] == "failed"
    (error,) = ran.rows("SELECT kind, traceback FROM error WHERE kind = 'install'")
    assert "ImportError" in error["traceback"] or "ModuleNotFound" in error["traceback"]


def test_the_sitecustomize_that_is_hidden_still_runs(capture: Capture, tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"print('{name}', __name__)\n")
    path = os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")])
    ran = capture("-c", "import sitecustomize; print(sitecustomize.__file__)", PYTHONPATH=path)
    # Once in kclab's own process, once in the program's.
    assert ran.output.out == "first sitecustomize\n" * 2 + f"{tmp_path}/first/sitecustomize.py\n"


def test_ctrl_c_ends_the_program_and_keeps_what_was_captured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kclab", "capture", "run", *ALL, "--"]
    process = subprocess.Popen(
        [*command, sys.executable, str(TOY), "plain", "sleep"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "sleeping\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    ran = Ran(Output(130, "", err), Store.at(tmp_path / "kclab.db"))
    assert ran.run_row()["status"] == "interrupted"
    assert len(ran.captures) == 1
    assert ran.left() == []


# Refused before anything starts

REFUSED = {
    "unknown adapter": (("--adapter", "nobody"), "no adapter 'nobody'"),
    "unknown definition": (("--definition", "nothing_like_*"), "no definition matches"),
    "unknown family": (("--define-missing", "--definition", "foo_n3"), "no definition matches"),
    "steps": (("--steps", "0,x"), "--steps '0,x'"),
    "size": (("--max-bytes", "32M"), "ambiguous"),
    "folder": (("--definitions", "nowhere"), "no such folder"),
    "fact": (("--fact", "model"), "write name=value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_means_nothing_starts_nothing(
    invoke: Cli, tmp_path: Path, case: str
) -> None:
    options, words = REFUSED[case]
    output = invoke("capture", "run", *options, "--", "touch", tmp_path / "started")
    assert output.code == 2
    assert words in output.err
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "kclab.db").exists()


def test_a_program_that_does_not_exist_is_named(invoke: Cli, tmp_path: Path) -> None:
    output = invoke("capture", "run", "--", "no-such-program-anywhere")
    assert output.code == 4
    assert "no-such-program-anywhere: no such program" in output.err
    assert not (tmp_path / "kclab.db").exists()


def test_tags_and_the_note_label_the_run(invoke: Cli, tmp_path: Path) -> None:
    output = invoke("capture", "run", "--tag", "a", "--tag", "b", "--note", "why", "--", "true")
    assert output.code == 3
    ran = Ran(output, Store.at(tmp_path / "kclab.db"))
    assert [row["tag"] for row in ran.rows("SELECT tag FROM run_tag ORDER BY tag")] == ["a", "b"]
    assert ran.run_row()["note"] == "why"


def test_a_full_disk_is_said_before_anything_starts(
    invoke: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.capture.control.ControlFolder.free_bytes", lambda self: 0)
    output = invoke("capture", "run", "--", "touch", tmp_path / "started")
    assert output.code == 4
    assert "the disk is full" in output.err
    assert not (tmp_path / "started").exists()
