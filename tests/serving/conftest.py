"""A stub of SGLang on PATH, a model folder, and what a test looks at after a serving capture."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kclab.db.store import Store
from kclab.serving import ServeOptions, ServeSummary, capture_serve

STUB = Path(__file__).with_name("stub_sglang.py")


def free_port() -> int:
    """A port whose neighbours, as SGLang takes them, are free too."""
    for base in range(20_000 + os.getpid() % 20_000, 60_000, 23):
        if all(_is_free(base + offset) for offset in (0, 1, 20, 21)):
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def is_running(pid: int) -> bool:
    """Whether a process with this id runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether none of these processes runs any more, at the latest after `seconds`."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Stub:
    """The stub as the tests use it."""

    folder: Path
    model: Path
    store: Store
    port: int = field(default_factory=free_port)

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "sglang"

    @property
    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def serve(
        self, progress: Callable[[str], None] = lambda line: None, **options: Any
    ) -> ServeSummary:
        """`capture_serve` on the stub: the square, unless options say otherwise."""
        options = {"cases": ("square",), "port": self.port, "grace_seconds": 1.0, **options}
        return capture_serve(self.store, ServeOptions(self.model, **options), progress)

    def rows(self, sql: str) -> list[Any]:
        connection = self.store.read()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    @property
    def run_row(self) -> dict[str, Any]:
        return dict(self.rows("SELECT * FROM run ORDER BY id DESC LIMIT 1")[0])

    @property
    def requests(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self.rows("SELECT * FROM request ORDER BY id")]
        for row in rows:
            row["payload"] = json.loads(row["payload"])
            row["response"] = json.loads(row["response"] or "null")
        return rows

    def half_written(self) -> list[Path]:
        """Temporaries that nobody cleaned up."""
        return [*self.store.database.parent.rglob("*.tmp"), *self.store.blobs.leftovers()]


Mode = Callable[[str], Stub]


@pytest.fixture
def stub(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Mode:
    """`stub("slow:1")` puts a stub that behaves so on PATH."""
    return put_stub(tmp_path, store, monkeypatch)


def put_stub(folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Mode:
    """The stub and a model for it in `folder`; what it returns sets how the stub behaves."""
    program = folder / "bin" / "sglang"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{STUB.read_text()}")
    program.chmod(0o755)
    model = folder / "model"
    model.mkdir()
    index = {
        "_class_name": "QwenImage21Pipeline",
        "transformer": ["diffusers", "StubTransformer"],
        "sample_sigmas": [1.0, 0.5],
    }
    (model / "model_index.json").write_text(json.dumps(index))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_PIDS", str(folder / "pids"))

    def behave(words: str) -> Stub:
        monkeypatch.setenv("STUB", words)
        return Stub(folder, model, store)

    return behave
