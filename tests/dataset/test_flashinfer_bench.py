"""flashinfer-bench itself loads an export, and its reference reproduces what was captured.

The package lives in `.venv-fib`, an environment of its own that sees this one's torch: its
declared dependencies pull GPU packages, none of which loading a dataset or a reference needs.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from kclab.core.families import FAMILIES
from kclab.dataset.exporting import export_flashinfer_trace
from kclab.dataset.importing import import_path
from kclab.db.store import Store
from tests.dataset.builder import VAR, RootBuilder, Tensor, definition, tensor
from tests.dataset.test_export import prefix0

ENVIRONMENT = Path(__file__).parents[2] / ".venv-fib"
PACKAGES = ("flashinfer-bench==0.1.2", "docstring-parser==0.17.0")
CHECK = """
import json, sys
import torch
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.compile.registry import BuilderRegistry
from flashinfer_bench.data import TraceSet
from safetensors.torch import load_file

root = sys.argv[1]
traces = TraceSet.from_path(root)
receipts = {}
for line in open(root + "/captures.jsonl"):
    receipt = json.loads(line)
    receipts[receipt["uuid"]] = receipt["expected_output"]

def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bytes(a) == bytes(b)

def bytes(t):
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

for name, definition in traces.definitions.items():
    runnable = BuilderRegistry.get_instance().build_reference(definition)
    for trace in traces.workloads[name]:
        stored = load_safetensors(definition, trace.workload, traces.root)
        inputs = gen_inputs(definition, trace.workload, "cpu", stored)
        outputs = runnable(*inputs) if isinstance(inputs, list) else runnable(**inputs)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        expected = receipts[trace.workload.uuid]
        wanted = [load_file(f"{root}/{expected[o]['path']}")["tensor"] for o in definition.outputs]
        verdict = len(outputs) == len(wanted) and all(map(same, outputs, wanted))
        print(json.dumps([name, verdict, len(traces.solutions.get(name, []))]))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment that has flashinfer-bench, made when it is missing."""
    ready = ENVIRONMENT / ".ready"
    with (Path(tempfile.gettempdir()) / "kclab-venv-fib.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != " ".join(PACKAGES):
            make_environment()
            ready.write_text(" ".join(PACKAGES))
    return ENVIRONMENT / "bin" / "python"


def make_environment() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    interpreter = ENVIRONMENT / "bin" / "python"
    install = [interpreter, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES]
    subprocess.run(install, check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True)
    (Path(own.stdout.strip()) / "main.pth").write_text(sysconfig.get_path("purelib") + "\n")


def bf16(values: list[list[int]]) -> Tensor:
    import torch

    value = torch.tensor(values, dtype=torch.bfloat16)
    raw = value.view(torch.uint8).numpy().tobytes()
    return tensor("bfloat16", tuple(value.shape), raw)


@pytest.fixture
def captured(store: Store, source: RootBuilder) -> Store:
    """A GEMM, a prefix of no rows, a dtype that the format lacks, and two outputs."""
    body = dict(FAMILIES["dense_gemm"].make(dtype="bfloat16", n=2, k=3).body)
    source.define(body)
    weight, inputs, outputs = (
        bf16([[1, 0, 1], [0, 2, 0]]),
        [[1, 2, 3], [4, 5, 6]],
        [[4, 4], [10, 10]],
    )
    for m in (1, 2):
        tensors = {"A": bf16(inputs[:m]), "W": weight}
        source.add(body["name"], tensors, {"C": bf16(outputs[:m])}, {"M": m})
    prefix0(source)
    ends = ({"x": (["N"], "uint8")}, {"y": (["N"], "uint8"), "n": ([], "int64")})
    reference = "def run(x):\n    return x + 50, x.long().sum()\n"
    source.define(definition("bytes", {"N": VAR}, *ends, reference))
    y = tensor("uint8", (2,), bytes([250, 51]))
    n = tensor("int64", (), (201).to_bytes(8, "little"))
    source.add("bytes", {"x": tensor("uint8", (2,), bytes([200, 1]))}, {"n": n, "y": y}, {"N": 2})
    import_path(store, source.report().root)
    return store


def test_it_loads_an_export_and_its_reference_reproduces_the_captures(
    python: Path, captured: Store, tmp_path: Path
) -> None:
    summary = export_flashinfer_trace(captured, tmp_path / "out", with_baseline_solutions=True)
    assert summary.left_out == []
    done = subprocess.run(
        [python, "-c", CHECK, tmp_path / "out"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    results = sorted(json.loads(line) for line in done.stdout.splitlines())
    gemm = "dense_gemm_bf16_nt_n2_k3"
    assert results == [
        ["attend_prefix0", True, 1],
        ["bytes", True, 1],
        [gemm, True, 1],
        [gemm, True, 1],
    ]
