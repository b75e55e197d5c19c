"""On a GPU: a poisoned context or full memory fails its own workload and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kclab.core.families import FAMILIES
from kclab.core.tolerance import default_tolerance
from kclab.replay.compare import compare_output
from kclab.replay.task import Outcome, Task
from kclab.replay.workers import WorkerPool
from tests.replay.test_compare import sample
from tests.replay.test_workers import Files, definition
from tests.replay.toys import DOUBLE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FAULTS = {
    "poisons": "import torch\ndef run(x):\n"
    "    return x[torch.full((2,), 10**9, device=x.device)]\n",
    "memory": "import torch\ndef run(x):\n"
    "    return torch.empty(1 << 50, dtype=torch.int8, device=x.device)\n",
    "stays": "def run(x):\n    return (x * 2).cpu()\n",
    "wrong": "def run(x):\n    return x * 3\n",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    files = Files(tmp_path_factory.mktemp("gpu"))
    names = []
    with WorkerPool("cuda:0", 1, timeout=120) as pool:
        tasks = []
        for name, reference in FAULTS.items():
            for label, source in ((f"good before {name}", DOUBLE), (name, reference)):
                tasks.append(files.task(pool, len(tasks), definition(label, source), len(tasks)))
                names.append(label)
        tasks.append(files.task(pool, len(tasks), definition("good", DOUBLE), 9.0))
        names.append("good at last")
        return {names[outcome.id]: outcome for outcome in pool.run(tasks)}


def test_the_good_ones_pass_on_the_gpu(outcomes: dict[str, Outcome]) -> None:
    good = [outcome for name, outcome in outcomes.items() if name.startswith("good")]
    assert len(good) == len(FAULTS) + 1
    assert {(outcome.status, outcome.device) for outcome in good} == {("passed", "cuda:0")}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("poisons", "error", "CUDA error"),
        ("memory", "error", "out of memory"),
        ("wrong", "failed", "2 of 2 elements differ"),
    ],
)
def test_a_fault_is_told(outcomes: dict[str, Outcome], name: str, status: str, reason: str) -> None:
    assert outcomes[name].status == status, outcomes[name]
    assert reason in (outcomes[name].reason or "")


def test_an_output_on_the_host_is_compared_there(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["stays"].status == "passed"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint16", "uint64", "bool",
                                   "float8_e4m3fn", "float4_e2m1fn_x2", "complex64"])  # fmt: skip
def test_comparing_on_the_gpu_says_what_the_cpu_says(dtype: str) -> None:
    reference, engine = sample(dtype), sample(dtype)
    engine.view(torch.uint8)[-1] ^= 1
    tolerance = default_tolerance(dtype)
    there = compare_output(reference.cuda(), engine, tolerance, "out")
    assert there == compare_output(reference, engine, tolerance, "out")


def test_the_oracle_runs_on_the_gpu(tmp_path: Path) -> None:
    files = Files(tmp_path)
    gemm = FAMILIES["dense_gemm"].make(dtype="bf16", n=64, k=512)
    a, w = torch.randn(48, 512).bfloat16(), torch.randn(64, 512).bfloat16()
    engine = (a.double() @ w.double().T).bfloat16()
    engine[5, 6] *= 1.05
    with WorkerPool("cuda", None, timeout=120) as pool:
        task = Task(
            0,
            pool.define(gemm),
            {"A": files.store(a), "W": files.store(w)},
            {"C": files.store(engine)},
            oracle=True,
        )
        (outcome,) = pool.run([task])
        assert pool.greeting["facts"]["gpu"]
    assert outcome.oracle[0].verdict == "engine"
    assert outcome.oracle[0].metrics and outcome.oracle[0].metrics["engine"]["index"] == [5, 6]
