"""The real SGLang on this CPU, tiny models for it, and what a capture from it left.

Run with `make test-engines`: SGLang has an environment of its own, which this process runs in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from torch import Tensor

from kclab.capture.options import CaptureOptions
from kclab.db.store import Store
from kclab.serving import ServeOptions, ServeSummary, capture_serve
from tests.serving.conftest import free_port, gone

HERE = Path(__file__).parent
LLM_ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16"),
    *("--disable-radix-cache", "--disable-overlap-schedule"),
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "2048"),
    *("--max-running-requests", "4", "--context-length", "1024", "--chunked-prefill-size", "512"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
)
"""What SGLang's LLM runtime needs to be told on a machine without a GPU."""
SMALL = """
[[case]]
name = "{name}"
kind = "image"
prompt = "A red teapot."
size = "128x128"
outputs = {outputs}
"""


@dataclass(frozen=True)
class Captured:
    """A finished capture, and its store."""

    summary: ServeSummary
    store: Store

    def rows(self, sql: str) -> list[Any]:
        connection = self.store.read()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return [json.loads(row[0]) for row in self.rows("SELECT receipt FROM capture ORDER BY id")]

    def of_family(self, family: str) -> list[dict[str, Any]]:
        """The receipts of definitions whose names begin so."""
        return [r for r in self.receipts if r["definition"].startswith(family)]

    def tensor(self, where: dict[str, str]) -> Tensor:
        """What a receipt's input or output is."""
        with safe_open(self.store.database.parent / where["path"], "pt") as file:
            return file.get_tensor(where["tensor_key"])

    def require_all_passed(self, captures: int | None = None) -> None:
        """Every capture was replayed and passed; so many, if that is known."""
        replayed = self.summary.replayed
        assert replayed is not None and replayed.status == "passed"
        verdicts = self.rows("SELECT status, count(*) FROM replay GROUP BY status")
        wanted = self.summary.capture.captures if captures is None else captures
        assert [tuple(row) for row in verdicts] == [("passed", wanted)]

    def require_nothing_left(self) -> None:
        """Every process drained its queue and is gone, and so is the control folder."""
        drained = self.rows("SELECT count(*) FROM capture_worker WHERE drained_us IS NULL")
        assert drained[0][0] == 0 and len(self.workers) >= 2
        assert gone(self.workers, 1)
        assert not list(self.store.database.parent.glob(".kclab-run/*"))

    @property
    def workers(self) -> list[int]:
        """Ids of the processes that took part."""
        rows = self.rows("SELECT process FROM capture_worker")
        return [int(row[0].split(":")[1]) for row in rows]


@pytest.fixture(scope="session", autouse=True)
def cpu_engine() -> Iterator[None]:
    """SGLang finds the stand-ins for what this machine lacks, and never asks the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "2")
        patch.setenv("PYTHONPATH", str(HERE / "shim"))
        patch.setenv("PATH", str(HERE / "shim" / "bin"), prepend=os.pathsep)
        yield


Write = Callable[[str], Path]


@pytest.fixture(scope="session")
def model(cpu_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """`model("qwen-image")` is a folder with a tiny model, written once."""
    folder = tmp_path_factory.mktemp("models")

    def write(kind: str) -> Path:
        target = folder / kind
        if not target.exists():
            writer = [sys.executable, str(HERE / "models.py"), kind, str(target)]
            subprocess.run(writer, check=True, timeout=300, env=dict(os.environ))
        return target

    return write


Serve = Callable[..., Captured]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, cpu_engine: None) -> Serve:
    """`serve(model, cases=…, steps=…, …)` captures from the real engine into a store of its own."""

    def run(model: Path, *, steps: tuple[int, ...] | None = None, **options: Any) -> Captured:
        store = Store.at(tmp_path_factory.mktemp("store") / "kclab.db")
        capture = CaptureOptions(adapters=(), define_missing=True, steps=steps)
        options = {"port": free_port(), "capture": capture, "start_seconds": 240.0, **options}
        return Captured(capture_serve(store, ServeOptions(model, **options), print), store)

    return run


def small_cases(folder: Path, **outputs: int) -> Path:
    """A file of 128x128 cases: name=outputs."""
    text = [SMALL.format(name=name, outputs=count) for name, count in outputs.items()]
    file = folder / "cases.toml"
    file.write_text("".join(text))
    return file
