"""What the guides in docs/ tell a reader to do works: their own files and scripts are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kclab.db.store import Store
from tests.cli.sample import BENCH_A, BENCH_B, REPLAY_A
from tests.cli.test_regressions import add_timing

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


def files_of(page: str) -> dict[str, str]:
    """The files that a guide shows: a block that follows a line ending in "`NAME`:"."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def shell(tmp_path: Path) -> Run:
    """Run a program in a folder where `kclab` and `python` are this environment's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": path, "PYTHONPATH": str(tmp_path), "KCLAB_TRUST": str(tmp_path / "trust")}
        return subprocess.run(
            argv, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """The files of the adapters' guide, and its entry point as pip would have written it."""
    files = files_of("adapters.md")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    installed = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in project["entry-points"].items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(points))
    return tmp_path


CAPTURE = ("kclab", "capture", "run", "--adapter", "tiny", "--definitions", "definitions", "--")


def test_the_adapter_of_the_guide_finds_the_engines_mistake(adapter: Path, shell: Run) -> None:
    assert shell("kclab", "definitions", "validate", "definitions").returncode == 0
    captured = shell(*CAPTURE, "python", "program.py")
    assert captured.returncode == 0 and "2 captured, 1 definition" in captured.stderr
    assert shell("kclab", "replay").returncode == 4  # nobody has trusted the reference yet
    assert shell("kclab", "definitions", "trust", "definitions").returncode == 0
    replayed = shell("kclab", "replay", "--oracle")
    assert replayed.returncode == 1 and "the engine is off, the reference is not" in replayed.stdout


def test_the_engine_mended_as_the_guide_says_passes(adapter: Path, shell: Run) -> None:
    guide = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    (mended,) = re.findall(r"^With `(.*sqrt\(\)\))` there", guide, re.MULTILINE)
    engine = adapter / "tiny_engine.py"
    wrong = "(x.square().mean(-1, keepdim=True).sqrt() + eps)"
    assert wrong in engine.read_text()
    engine.write_text(engine.read_text().replace(wrong, mended))
    assert shell("kclab", "definitions", "trust", "definitions").returncode == 0
    assert shell(*CAPTURE, "python", "program.py").returncode == 0
    replayed = shell("kclab", "replay", "--run", "last")
    assert replayed.returncode == 0 and "2 of 2 passed" in replayed.stderr


def test_a_call_that_the_adapter_refuses_is_counted(adapter: Path, shell: Run) -> None:
    program = adapter / "program.py"
    program.write_text(program.read_text().replace("randn(rows, 64)", "randn(rows, 2, 64)"))
    done = shell(*CAPTURE, "python", "program.py")
    assert done.returncode == 3 and "3 dimensions" in done.stdout + done.stderr


@pytest.fixture
def gate(tmp_path: Path, sample: Store, shell: Run) -> Run:
    """The CI guide's script, on a store whose two benchmarks can be told apart."""
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "gate.sh").write_text(script, encoding="utf-8")
    return shell


@pytest.mark.parametrize(
    ("slower", "code", "told"), [(1.0, 0, "no proven regression"), (1.06, 1, "slower, see")]
)
def test_the_gate_of_the_guide_passes_on_what_was_found(
    gate: Run, sample: Store, slower: float, code: int, told: str
) -> None:
    add_timing(sample, 5, 1.0)
    add_timing(sample, 6, slower)
    done = gate("sh", "gate.sh", BENCH_A, BENCH_B)
    assert done.returncode == code and told in done.stdout


def test_the_gate_of_the_guide_does_not_pass_where_nothing_was_timed(gate: Run) -> None:
    done = gate("sh", "gate.sh", REPLAY_A, REPLAY_A)
    assert done.returncode == 3 and "nothing was compared; kclab: no timing" in done.stdout


def test_the_comment_of_the_gate_starts_with_the_regression(
    gate: Run, sample: Store, tmp_path: Path
) -> None:
    add_timing(sample, 5, 1.0)
    add_timing(sample, 6, 1.06)
    gate("sh", "gate.sh", BENCH_A, BENCH_B)
    comment = (tmp_path / "comment.md").read_text()
    assert comment.index("### Regressions") < comment.index("| gemm |") < comment.index("### What")
