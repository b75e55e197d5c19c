"""The engine's process: owned, watched, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kclab.core.errors import EngineFailed, EnvironmentLacking
from kclab.serving.process import EngineProcess
from tests.serving.conftest import gone, is_running

FAMILY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[3]))
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

OWNER = """
import os, sys, time
from pathlib import Path
from kclab.serving.process import EngineProcess
with EngineProcess(sys.argv[2:], os.environ, Path(sys.argv[1])):
    time.sleep(600)
"""


def family(pids: Path, seconds: float = 600) -> list[str]:
    """An engine with a child that left its session and ignores SIGTERM."""
    return [sys.executable, "-c", FAMILY, str(pids), STUBBORN, str(seconds)]


def read_pids(file: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(word) for word in file.read_text().split()]


def start(tmp_path: Path, *argv: str, grace: float = 0.3) -> EngineProcess:
    return EngineProcess(argv, os.environ, tmp_path / "log", grace)


def test_end_takes_children_that_left_the_session_and_ignore_sigterm(tmp_path: Path) -> None:
    with start(tmp_path, *family(tmp_path / "pids")):
        pids = read_pids(tmp_path / "pids")
    assert gone(pids, 0.5)


def test_killed_owner_leaves_nothing_of_the_engine(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "log"), *family(tmp_path / "pids")]
    owner = subprocess.Popen(argv)
    pids = read_pids(tmp_path / "pids")
    owner.kill()
    owner.wait()
    assert gone(pids, 10)


def test_dying_engine_takes_its_children_with_it(tmp_path: Path) -> None:
    with start(tmp_path, *family(tmp_path / "pids", seconds=0)) as engine:
        pids = read_pids(tmp_path / "pids")
        assert gone(pids, 10)
        assert engine.exit_code() == 0


def test_first_processes_end_is_told_by_signal_name_at_once(tmp_path: Path) -> None:
    program = "import os, signal; print('bus', flush=True); os.kill(os.getpid(), signal.SIGBUS)"
    with start(tmp_path, sys.executable, "-c", program) as engine:
        assert gone([engine.require_started()], 10)
        time.sleep(0.2)
        with pytest.raises(EngineFailed, match=r"signal SIGBUS while testing\.\n.*\n  bus"):
            engine.require_alive("while testing")


def test_engine_gets_a_chance_to_end_by_itself(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)"
    )
    with start(tmp_path, sys.executable, "-c", program, grace=20) as engine:
        while not (tmp_path / "log").exists() or "up" not in (tmp_path / "log").read_text():
            time.sleep(0.02)
        assert engine.end() == 7


def test_ctrl_c_reaches_kclab_and_not_the_engine(tmp_path: Path) -> None:
    with start(tmp_path, sys.executable, "-c", "import time; time.sleep(600)") as engine:
        pid = engine.require_started()
        assert os.getsid(pid) == pid != os.getsid(0)
        os.killpg(os.getpgid(pid), signal.SIGINT)
        assert gone([pid], 10)


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    stranger = subprocess.Popen(argv, start_new_session=True)
    try:
        with start(tmp_path, *argv) as engine:
            engine.require_started()
        assert is_running(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    with (
        start(tmp_path, str(missing)) as engine,
        pytest.raises(EnvironmentLacking, match=f"{missing}: cannot be started"),
    ):
        engine.require_started()


def test_environment_of_the_engine_does_not_reach_its_supervisor(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; print(os.getpid(), flush=True)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-c", ""]
    with EngineProcess(argv, environment, tmp_path / "log") as engine:
        pid = engine.require_started()
        assert gone([pid], 10)
    assert (tmp_path / "log").read_text().split() == [str(pid)]
