"""Replay on a Ray cluster of two nodes: the same rows, whoever is lost on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import torch

from kclab import __version__
from kclab.cli.main import name_cluster
from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.core.ray_cluster import places
from kclab.core.ray_worker import check, own_facts, worker_class
from kclab.db.connection import writing
from kclab.db.rows import CaptureRow, InputValue, add_capture, add_definition, add_workload
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.db.verdicts import ReplayRow
from kclab.replay import Options, Selection
from kclab.replay import replay as replay_store
from kclab.replay.ray_files import LARGE, NodeFiles
from kclab.replay.ray_pool import RayPool
from kclab.replay.task import Outcome, StoredTensor, Task
from tests.conftest import Cli
from tests.replay.ray_nodes import Nodes, marked, reachable, two_nodes
from tests.replay.test_workers import FAULTS, Files, definition
from tests.replay.toys import DOUBLE, StoreBuilder, define

KILLS_ITS_WORKER = (
    "import os, signal, time\ndef run(x):\n"
    "    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(60)\n"
)
ROWS = (
    "SELECT r.subject, r.status, r.reason, r.warning, r.device, o.name, o.passed, o.elements,"
    " o.mismatched, o.max_abs, o.worst_index, o.worst_engine, o.worst_reference"
    " FROM replay r LEFT JOIN replay_output o ON o.replay_id = r.id"
    " WHERE r.run_id = (SELECT max(id) FROM run) ORDER BY r.subject, o.ordinal"
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


@pytest.fixture
def pool(nodes: Nodes) -> Iterator[RayPool]:
    with RayPool(nodes.address, "cpu", None, timeout=60.0) as opened:
        yield opened


def fill(store: Store, count: int) -> None:
    """Captures that pass, differ and raise, in one transaction."""
    build = StoreBuilder(store)
    double, raising = define(), define(name="raises", reference=FAULTS["raises"])
    with run(store, "capture", {}) as active, writing(active.connection) as connection:
        ids = {d.name: add_definition(connection, d.body) for d in (double, raising)}
        right, wrong = (build._blob(connection, torch.tensor([v, 1.0])) for v in (2.0, 3.0))
        x = build._blob(connection, torch.tensor([1.0, 0.5]))
        for number in range(count):
            name = "raises" if number % 20 == 7 else "double"
            made = [("out", wrong if number % 10 == 3 else right)]
            uuid = f"{number:08x}-0000-0000-0000-000000000001"
            workload, _ = add_workload(connection, uuid, ids[name], {}, {"x": InputValue(blob=x)})
            receipt = CaptureRow(
                f"{number:08x}-0000-0000-0000-000000000000", "toy", "{}", 1, {}, made
            )
            add_capture(connection, active.id, workload, receipt)


def rows(store: Store, query: str = ROWS) -> list[tuple[Any, ...]]:
    with closing(store.read()) as connection:
        return [tuple(row) for row in connection.execute(query)]


def judged(store: Store, options: Options, progress: Any = None) -> list[tuple[Any, ...]]:
    replay_store(store, Selection(), options, progress)
    return rows(store)


class Killer:
    """Progress that kills a Ray worker once, as soon as `at` verdicts fell."""

    def __init__(self, nodes: Nodes, at: int) -> None:
        self.nodes, self.at = nodes, at
        self.killed: int | None = None

    def __call__(self, done: int, _total: int, _row: ReplayRow) -> None:
        if done >= self.at and self.killed is None:
            self.killed = self.nodes.workers()[0]
            os.kill(self.killed, signal.SIGKILL)


def test_a_worker_killed_midway_changes_no_row_of_2000(
    store: Store, nodes: Nodes, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(store, 2000)
    local = judged(store, Options(device="cpu", jobs=1))
    killer = Killer(nodes, at=1000)
    wide = judged(store, Options(device="cpu", ray=nodes.address), killer)
    assert killer.killed is not None and len(wide) == 2000
    assert wide == local
    assert capfd.readouterr() == ("", ""), "Ray keeps its words to itself"


def tasks_of(pool: RayPool, files: Files, references: Sequence[str]) -> list[Task]:
    """One task for each reference, numbered in their order."""
    return [
        files.task(pool, number, definition(f"toy{number}", reference), number)
        for number, reference in enumerate(references)
    ]


def outcomes(pool: RayPool, tasks: Sequence[Task]) -> dict[int, Outcome]:
    found = list(pool.run(tasks))
    assert sorted(outcome.id for outcome in found) == [task.id for task in tasks]
    return {outcome.id: outcome for outcome in found}


def test_a_reference_that_kills_its_worker_is_told_after_one_retry(
    pool: RayPool, tmp_path: Path
) -> None:
    references = [DOUBLE] * 20 + [KILLS_ITS_WORKER] + [DOUBLE] * 20
    found = outcomes(pool, tasks_of(pool, Files(tmp_path), references))
    guilty = found.pop(20)
    assert {outcome.status for outcome in found.values()} == {"passed"}
    assert guilty.status == "error"
    assert re.fullmatch(
        r"the Ray worker judging it was lost twice \(node .+, process (\d+); then node .+, process"
        r" (?!\1\b)\d+\)",
        guilty.reason or "",
    )


def test_a_fault_reads_as_it_does_without_ray(pool: RayPool, tmp_path: Path) -> None:
    names = ["crashes", "leaves", "memory", "noisy"]
    references = [FAULTS[name] for name in names for _ in range(2)]
    found = outcomes(pool, tasks_of(pool, Files(tmp_path), [*references, DOUBLE]))
    assert found[0].reason == "the reference's process was killed by SIGSEGV"
    assert "<reference of toy0>" in (found[0].traceback or "")
    assert found[2].reason == "the reference's process left with exit code 7"
    assert found[4].lacking and "out of memory" in (found[4].reason or "")
    assert found[6].status == "failed" and "spam 9999" in (found[6].traceback or "")
    assert found[8].status == "passed"


def test_a_hanging_reference_times_out_and_what_fell_does_not_wait(
    nodes: Nodes, tmp_path: Path
) -> None:
    with RayPool(nodes.address, "cpu", 1, timeout=2.0) as pool:
        tasks = tasks_of(pool, Files(tmp_path), [DOUBLE] * 7 + [FAULTS["hangs"], DOUBLE])
        found = list(pool.run(tasks))
    assert [outcome.id for outcome in found[:7]] == list(range(7))
    (hung,) = [outcome for outcome in found if outcome.status != "passed"]
    assert hung.id == 7 and "timed out after 2 s" in (hung.reason or "")
    assert "<reference of toy7>" in (hung.traceback or "")


def unseen(tasks: Sequence[Task], folder: Path) -> list[Task]:
    """Tasks whose files lie in the working folder, which is another one at the nodes."""

    def hide(value: Any) -> Any:
        path = Path("/proc/self/cwd") / Path(value.path).relative_to(folder)
        return replace(value, path=str(path))

    return [
        replace(
            task,
            inputs={name: hide(value) for name, value in task.inputs.items()},
            outputs={name: hide(value) for name, value in task.outputs.items()},
        )
        for task in tasks
    ]


def test_files_that_a_node_does_not_see_are_fetched(
    pool: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = tasks_of(pool, Files(tmp_path), [DOUBLE] * 30)
    big = torch.ones(LARGE)  # goes through the object store, once for all
    stored = {"x": Files(tmp_path).store(big)}, {"out": Files(tmp_path).store(big * 2)}
    tasks += [Task(n, tasks[0].definition, *stored) for n in range(30, 34)]
    found = outcomes(pool, unseen(tasks, tmp_path))
    assert {outcome.status for outcome in found.values()} == {"passed"}
    assert len(pool._shipping._put) == 2


def test_another_file_of_that_name_on_a_node_is_not_taken_for_the_drivers(
    pool: RayPool, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = unseen(tasks_of(pool, Files(tmp_path), [DOUBLE]), tmp_path)
    # As of a dataset folder, whose file names promise nothing: no digest tells them apart.
    blind = [replace(t, outputs={"out": replace(t.outputs["out"], sha256=None)}) for t in tasks]
    right = Path(tasks[0].outputs["out"].path)
    data = right.read_bytes()
    (nodes.folder / right.name).write_bytes(data[:-1] + bytes([data[-1] ^ 64]))
    assert outcomes(pool, blind)[0].status == "passed"
    assert outcomes(pool, tasks)[0].status == "passed"


def test_a_fetched_file_is_verified_and_named_as_the_driver_names_it(
    pool: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damaged, absent = unseen(tasks_of(pool, Files(tmp_path), [DOUBLE] * 2), tmp_path)
    path = Path(damaged.inputs["x"].path)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    Path(absent.inputs["x"].path).unlink()
    found = outcomes(pool, [damaged, absent])
    assert (found[0].reason or "").startswith(f"damaged blob {path}: its content has digest")
    assert (found[1].reason or "").startswith(f"no blob {absent.inputs['x'].path}")
    assert found[1].lacking


def test_fetched_files_are_bounded_and_those_in_use_stay(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "fetched", room=20)
    states = {name: (1, 10, n) for n, name in enumerate(["/a", "/b", "/c"])}
    files.receive({name: b"x" * 10 for name in states}, states)
    files.tidy(["/a"])
    there = {n: files.place(StoredTensor(n, "t", None), state) for n, state in states.items()}
    assert there["/b"] is None and there["/a"] and there["/c"]
    assert len(list(files.folder.iterdir())) == 2


def test_a_copy_with_the_digests_content_is_read_in_place(tmp_path: Path) -> None:
    files = Files(tmp_path)
    stored = files.store(torch.tensor([1.0, 2.0]))
    size = Path(stored.path).stat().st_size
    node = NodeFiles(tmp_path / "fetched")
    assert node.place(stored, (1, size, 1)) == stored.path
    assert node.place(replace(stored, sha256=None), (1, size, 1)) is None
    assert node.place(stored, (1, size + 1, 1)) is None


def interrupting(done: int, _total: int, _row: ReplayRow) -> None:
    if done == 50:
        raise KeyboardInterrupt


def test_an_interrupt_ends_our_workers_and_nobody_elses_cluster(store: Store, nodes: Nodes) -> None:
    fill(store, 200)
    with pytest.raises(KeyboardInterrupt):
        judged(store, Options(device="cpu", ray=nodes.address), interrupting)
    assert rows(store, "SELECT count(*) FROM replay") == [(50,)]
    deadline = time.monotonic() + 20
    while nodes.workers():
        assert time.monotonic() < deadline, "a worker outlived the interrupt"
        time.sleep(0.1)
    assert all(psutil.pid_exists(raylet) for raylet in nodes.raylets)


def test_our_own_cluster_is_on_loopback_and_ctrl_c_leaves_nothing_of_it(
    store: Store, tmp_path: Path
) -> None:
    fill(store, 40)
    slow = define(name="slow", reference="import time\ndef run(x):\n    time.sleep(60)\n")
    StoreBuilder(store, [""] * 40).add(slow, {"x": torch.ones(1)}, {"out": torch.ones(1)})
    mark = f"kclab-test-{uuid4()}"
    command = ["--db", str(store.database), "replay", "--ray", "local", "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "kclab", *command],
        env={**os.environ, "KCLAB_TEST_MARK": mark, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 90
        while rows(store, "SELECT count(*) FROM replay") != [(40,)]:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not reachable(marked(mark))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "kclab: interrupted.\n"
    assert rows(store, "SELECT status FROM run WHERE command = 'replay'") == [("interrupted",)]
    deadline = time.monotonic() + 20
    while left := marked(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    assert not (tmp_path / ".ray").exists(), "the token was for this cluster alone"


def test_without_ray_the_command_to_install_it_is_said(
    store: Store, invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke("--db", store.database, "replay", "--ray")
    assert done.code == 4
    assert "--ray needs Ray, which is not installed; pip install 'kclab[ray]'." in done.err


def test_a_node_without_kclab_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kclab.replay.ray_host", None)
    greeting = worker_class()("kclab.replay.ray_host:Host", ("cpu", 1.0, 1)).greet()
    with pytest.raises(
        EnvironmentLacking, match=r"^Ray node .+, process \d+: no kclab that could"
    ) as told:
        check(greeting)
    assert str(told.value).endswith(f"install this one for {sys.executable}.")


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"kclab": "0.0.1"}, f"it has kclab 0.0.1, here it is {__version__}; install that there."),
        ({"torch": "2.1.0+cpu"}, "it has torch 2.1.0, here it is "),
    ],
)
def test_a_node_with_another_kclab_or_torch_is_refused(theirs: dict[str, str], said: str) -> None:
    with pytest.raises(EnvironmentLacking, match=re.escape(said)):
        check({**own_facts(), **theirs})


def test_a_node_may_have_torchs_build_for_another_device() -> None:
    check({**own_facts(), "torch": torch.__version__.partition("+")[0] + "+cu999"})


def test_a_numbered_gpu_is_rays_to_give(pool: RayPool) -> None:
    with pytest.raises(BadUsage, match="say cuda"):
        places(pool._ray, "cuda:1")
    with pytest.raises(EnvironmentLacking, match="the Ray cluster has no GPU"):
        places(pool._ray, "cuda")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("replay --ray", "replay --ray auto"),
        ("replay --ray captures/", "replay --ray auto captures/"),
        ("replay --ray --oracle", "replay --ray auto --oracle"),
        ("replay --ray local captures/", "replay --ray local captures/"),
        ("replay --ray 10.0.0.7:6379", "replay --ray 10.0.0.7:6379"),
        ("replay --ray ray://head:10001", "replay --ray ray://head:10001"),
        ("replay --ray=head:6379", "replay --ray=head:6379"),
        ("capture run -- python a.py --ray", "capture run -- python a.py --ray"),
    ],
)
def test_ray_takes_an_address_or_none(words: str, meant: str) -> None:
    assert name_cluster(words.split()) == meant.split()


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("here", 2, "--ray here: write the address as HOST:PORT, or auto, or local."),
        ("ray://head:10001", 2, "kclab does not go through Ray's client"),
        ("127.0.0.1:1", 4, "no Ray cluster answers at 127.0.0.1:1 ("),
    ],
)
def test_where_no_cluster_can_be_is_said(
    store: Store, invoke: Cli, address: str, code: int, said: str
) -> None:
    fill(store, 1)
    done = invoke("--db", store.database, "replay", f"--ray={address}")
    assert done.code == code and said in done.err
