"""Fixtures that more than one part uses: a private machine state, a store, the command line."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kclab.db.migrate import ensure_current
from kclab.db.store import Store


def pytest_configure() -> None:
    """Programs under test meet signals as in a terminal, also where a shell ignores them (`&`)."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@dataclass(frozen=True, slots=True)
class Output:
    """What a command ended with."""

    code: int
    out: str
    err: str


Cli = Callable[..., Output]


@pytest.fixture(autouse=True)
def private_state(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the developer's own settings, trust list or database reaches a test."""
    state: Path = tmp_path_factory.mktemp("state")
    for name in [name for name in os.environ if name.startswith("KCLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    # Tests measure beside each other; the lock that forbids it lies in this folder.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(state))
    monkeypatch.setenv("KCLAB_TRUST", str(state / "trust.json"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return state


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: Any) -> Path:
    """A freshly made database to copy: migrating takes half a second, copying none."""
    path: Path = tmp_path_factory.mktemp("template") / "kclab.db"
    ensure_current(path)
    return path


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Store:
    """An empty store of its own."""
    database = tmp_path / "store" / "kclab.db"
    database.parent.mkdir()
    shutil.copyfile(empty_database, database)
    return Store.at(database)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`invoke("--db", path, "runs", "list")` runs the command line inside this process.

    The working folder is `tmp_path`, so that the default store lies there.
    """
    from kclab.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Output:
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([str(word) for word in argv])
            except SystemExit as end:
                code = int(end.code or 0)
        return Output(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`cli("runs", "list", env={…}, cwd=…)` runs the command line as a process of its own."""

    def run(
        *argv: object, env: Mapping[str, str] | None = None, cwd: Path = tmp_path, **options: Any
    ) -> Output:
        options.setdefault("timeout", 120)
        done = subprocess.run(
            [sys.executable, "-m", "kclab", *[str(word) for word in argv]],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            **options,
        )
        return Output(done.returncode, done.stdout, done.stderr)

    return run
