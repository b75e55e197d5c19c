"""Worker processes: whatever a reference does, only its own workload fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kclab.blob.safetensors_file import encode_header
from kclab.blob.tensors import to_bytes
from kclab.core.definition import Definition
from kclab.core.digest import tensor_digest
from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.replay.noise import LIMIT, TAIL, NoiseReader, marker
from kclab.replay.task import Outcome, StoredTensor, Task
from kclab.replay.workers import WorkerPool
from tests.replay.toys import DOUBLE, body

FAULTS = {
    "raises": "def run(x):\n    raise RuntimeError('boom')\n",
    "exits": "import sys\ndef run(x):\n    sys.exit(3)\n",
    "leaves": "import os\ndef run(x):\n    os._exit(7)\n",
    "crashes": "import ctypes\ndef run(x):\n    ctypes.string_at(1)\n",
    "killed": "import os, signal\ndef run(x):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "memory": "import torch\ndef run(x):\n    return torch.zeros(1 << 50)\n",
    "hangs": "import time\ndef run(x):\n    time.sleep(1000)\n",
    "closes": "import os\ndef run(x):\n    os.closerange(0, 100)\n    return x * 2\n",
    "noisy": "def run(x):\n    for i in range(10000): print('spam', i)\n    return x * 3\n",
    "default": "import torch\ndef run(x):\n    torch.set_default_dtype(torch.float64)\n"
    "    return torch.tensor([1.0])\n",
}


class Files:
    """Tensors in files, and tasks over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(self, tensor: Tensor) -> StoredTensor:
        stored = to_bytes(tensor)
        data = bytes(stored.data)
        sha256 = tensor_digest(stored.dtype, stored.shape, data)
        path = self.folder / f"{sha256}.safetensors"
        path.write_bytes(encode_header(stored.dtype, stored.shape, len(data)) + data)
        return StoredTensor(str(path), "tensor", sha256)

    def task(self, pool: WorkerPool, number: int, definition: Definition, value: float) -> Task:
        x = torch.tensor([value, 1.0])
        return Task(
            number, pool.define(definition), {"x": self.store(x)}, {"out": self.store(x * 2)}
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def definition(name: str, reference: str) -> Definition:
    return Definition.from_foreign(body(name, reference))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every fault with a good workload before and after it, in one pool of two workers."""
    files = Files(tmp_path_factory.mktemp("faults"))
    names: list[str] = []
    with WorkerPool("cpu", 2, timeout=3.0) as pool:
        tasks = []
        good = definition("good", DOUBLE)
        for number, (name, reference) in enumerate(FAULTS.items()):
            tasks.append(files.task(pool, 2 * number, good, number))
            tasks.append(files.task(pool, 2 * number + 1, definition(name, reference), number))
            names += [f"good before {name}", name]
        tasks.append(files.task(pool, len(tasks), good, 99))
        names.append("good at last")
        return {names[outcome.id]: outcome for outcome in pool.run(tasks)}


def test_every_workload_has_one_outcome(outcomes: dict[str, Outcome]) -> None:
    assert len(outcomes) == 2 * len(FAULTS) + 1


def test_the_good_ones_all_pass(outcomes: dict[str, Outcome]) -> None:
    good = {name: outcome for name, outcome in outcomes.items() if name.startswith("good")}
    assert {outcome.status for outcome in good.values()} == {"passed"}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("raises", "error", "the reference raised RuntimeError: boom (line 2 of the reference)"),
        ("exits", "error", "the reference raised SystemExit: 3"),
        ("leaves", "error", "left with exit code 7"),
        ("crashes", "error", "was killed by SIGSEGV"),
        ("killed", "error", "was killed by SIGKILL, as the system does when memory runs out"),
        ("memory", "error", "out of memory"),
        ("hangs", "error", "timed out after 3 s"),
        ("closes", "error", "the reference's process"),
        ("noisy", "failed", "2 of 2 elements differ"),
    ],
)
def test_a_fault_is_told_in_a_sentence(
    outcomes: dict[str, Outcome], name: str, status: str, reason: str
) -> None:
    assert outcomes[name].status == status
    assert reason in (outcomes[name].reason or "")


def test_the_stack_of_a_crash_and_a_hang_is_kept(outcomes: dict[str, Outcome]) -> None:
    assert "<reference of crashes>" in (outcomes["crashes"].traceback or "")
    assert "<reference of hangs>" in (outcomes["hangs"].traceback or "")


def test_the_tail_of_what_was_printed_is_kept_with_the_failure(
    outcomes: dict[str, Outcome],
) -> None:
    kept = outcomes["noisy"].traceback or ""
    assert kept.endswith("spam 9999\n")
    assert len(kept) < TAIL + 200


def test_a_traceback_shows_the_references_own_line(outcomes: dict[str, Outcome]) -> None:
    assert "raise RuntimeError('boom')" in (outcomes["raises"].traceback or "")


def test_memory_is_the_machines_lack(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["memory"].lacking
    assert not outcomes["raises"].lacking


def test_an_os_memory_limit_fails_the_workload_alone(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = (
        "import torch, resource\ndef run(x):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))\n"
        "    try:\n        return torch.ones(2 << 30)\n"
        "    finally:\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
    )
    with WorkerPool("cpu", 1, timeout=60) as pool:
        tasks = [
            files.task(pool, 0, definition("greedy", greedy), 1.0),
            files.task(pool, 1, definition("good", DOUBLE), 1.0),
        ]
        found = [(o.status, o.reason or "") for o in pool.run(tasks)]
    assert found[0][0] == "error" and "out of memory" in found[0][1]
    assert found[1][0] == "passed"


def test_a_reference_is_compiled_once_and_its_inputs_are_fresh_each_time(files: Files) -> None:
    counting = (
        "compiled = []\ndef run(x):\n    compiled.append(1)\n    x.mul_(2)\n"
        "    return x if len(compiled) < 9 else x * 0\n"
    )
    with WorkerPool("cpu", 1, timeout=60) as pool:
        task = files.task(pool, 0, definition("counting", counting), 5.0)
        again = [Task(i, task.definition, task.inputs, task.outputs) for i in range(10)]
        statuses = [outcome.status for outcome in pool.run(again)]
    assert statuses == ["passed"] * 8 + ["failed"] * 2


def test_a_changed_file_is_verified_again(files: Files) -> None:
    with WorkerPool("cpu", 1, timeout=60) as pool:
        task = files.task(pool, 0, definition("good", DOUBLE), 5.0)

        (first,) = pool.run([task])
        path = next(files.folder.glob("*.safetensors"))
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (second,) = pool.run([task])
    assert first.status == "passed"
    assert second.status == "error" and "damaged blob" in (second.reason or "")


def test_leaving_the_pool_ends_its_processes(files: Files) -> None:
    with WorkerPool("cpu", 2, timeout=60) as pool:
        list(pool.run([files.task(pool, 0, definition("good", DOUBLE), 1.0)]))
        pids = [worker.process.pid for worker in pool.workers]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(BadUsage, match="choose auto, cpu, cuda"):
        WorkerPool("tpu", None, 1.0)


@pytest.mark.parametrize(
    ("device", "jobs", "greeting", "devices"),
    [
        ("cpu", 3, {}, ["cpu"] * 3),
        ("auto", 2, {"device": "cpu", "gpus": 0}, ["cpu"] * 2),
        ("auto", None, {"device": "cuda:0", "gpus": 2}, ["cuda:0", "cuda:1"]),
        ("cuda", 3, {"device": "cuda:0", "gpus": 2}, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", None, {"device": "cuda:1", "gpus": 2}, ["cuda:1"]),
        ("cuda", None, {}, ["cuda"]),  # the first worker has yet to say how many there are
    ],
)
def test_each_gpu_gets_one_worker_unless_jobs_says_otherwise(
    device: str, jobs: int | None, greeting: dict[str, object], devices: list[str]
) -> None:
    with WorkerPool("cpu", jobs, 1.0) as pool:
        pool.device, pool.greeting = device, greeting
        assert pool._devices() == devices


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
def test_asking_for_a_gpu_that_is_not_there_says_so(files: Files) -> None:
    with WorkerPool("cuda", None, 60.0) as pool:
        tasks = [files.task(pool, 0, definition("good", DOUBLE), 1.0)]
        with pytest.raises(EnvironmentLacking, match="no usable CUDA device here"):
            list(pool.run(tasks))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
def test_workers_started_on_gpus_that_turn_out_not_to_be_there_are_let_go(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.replay.workers.has_gpu_driver", lambda: True)
    monkeypatch.setattr("kclab.replay.workers.likely_gpus", lambda: 2)
    with WorkerPool("auto", 2, 60.0) as pool:
        started: list[str] = []
        start = pool._start
        monkeypatch.setattr(pool, "_start", lambda device: (started.append(device), start(device)))
        tasks = [files.task(pool, n, definition("good", DOUBLE), float(n)) for n in range(6)]
        outcomes = list(pool.run(tasks))
        deadline = time.monotonic() + 60
        while any(w.greeting is None for w in pool.workers) and time.monotonic() < deadline:
            assert not list(pool.step(0.1))
        assert {worker.device for worker in pool.workers} == {"cpu"}
    assert started[0] == "cuda:1"  # beside the first, before it has said what there is
    assert sorted(outcome.id for outcome in outcomes) == list(range(6))
    assert {(outcome.status, outcome.device) for outcome in outcomes} == {("passed", "cpu")}


def test_output_is_bounded_and_told_apart_by_task() -> None:
    reader, writer = os.pipe()
    noise = NoiseReader(reader)
    os.write(writer, b"of one" + marker(1) + b"of two" + marker(2))
    for _ in range(LIMIT // 30_000 + 20):
        os.write(writer, b"x" * 30_000)
        noise.read()
    os.write(writer, b"the end" + marker(3))
    assert noise.tail_of(1) == "of one"
    assert noise.tail_of(2) == "of two"
    tail = noise.tail_of(3)
    assert tail.endswith("xthe end") and len(tail) <= TAIL
    os.close(writer)
    noise.close()


def test_a_dead_parent_takes_a_hanging_worker_with_it(files: Files, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from kclab.replay.workers import WorkerPool\n"
        "from tests.replay.test_workers import Files, definition, FAULTS\n"
        f"files = Files(Path({str(tmp_path)!r}))\n"
        "pool = WorkerPool('cpu', 1, timeout=1000)\n"
        "print(pool.workers[0].process.pid, flush=True)\n"
        "hang = definition('hangs', FAULTS['hangs'])\n"
        "list(pool.run([files.task(pool, 0, hang, 1.0)]))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
