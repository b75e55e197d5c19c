"""Sweeps on a Ray cluster of two nodes: rows as if each were swept here, written here alone."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from kclab.core.errors import EnvironmentLacking
from kclab.db.store import Store
from kclab.fc2.lab import Subject, capture
from kclab.fc2.problem import Precision, Problem
from kclab.fc2.ray_sweeps import Going, _Sweeps
from kclab.fc2.search import Options
from kclab.fc2.sweeps import Ask, Swept, stored_subjects, sweep_each
from tests.replay.ray_nodes import Nodes, two_nodes

ASK = Ask(Options(until="heuristics"), params={"until": "heuristics"})
SMALL = [Problem(Precision.BF16, m, 32, 64) for m in (8, 16, 24)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with closing(store.read()) as connection:
        return [tuple(row) for row in connection.execute(query)]


def swept(store: Store, nodes: Nodes, subjects: list[Subject], ask: Ask = ASK) -> list[Swept]:
    return sweep_each(store, subjects, ask, ray=nodes.address, told=lambda _: None)


def test_shapes_swept_on_a_cluster_are_rows_like_any_other(store: Store, nodes: Nodes) -> None:
    found = swept(store, nodes, [Subject("auto", problem=problem) for problem in SMALL])
    assert [(s.exit_code, bool(s.run_uuid)) for s in found] == [(0, True)] * 3
    results = rows(
        store,
        "SELECT b.m, count(*), min(v.backend), min(r.host) IS NOT NULL, min(p.mode)"
        " FROM fc2_result f JOIN fc2_boundary b ON b.id = f.boundary_id"
        " JOIN fc2_validity v ON v.id = f.validity_id JOIN run r ON r.id = f.run_id"
        " JOIN run p ON p.id = r.parent_id GROUP BY b.m ORDER BY b.m",
    )
    assert [row[0] for row in results] == [8, 16, 24]
    assert all(row[1] >= 2 and row[2:] == ("cpu", 1, "sweeps") for row in results)
    assert rows(store, "SELECT count(*) > 0 FROM timing_sample") == [(1,)]
    for (sha256,) in rows(store, "SELECT sha256 FROM blob"):
        store.blobs.verify(sha256)


def test_a_stored_boundary_is_the_same_one_afterwards(
    store: Store, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(store, SMALL[0], "cpu", 7)
    before = rows(store, "SELECT uuid FROM workload")
    # A node that does not see the store gets its blobs from here.
    monkeypatch.setattr("kclab.fc2.ray_sweeps.state_of", lambda _path: (0, 0, 0))
    (found,) = swept(store, nodes, stored_subjects(store, Subject("cpu"), ["last"]))
    assert found.exit_code == 0, found.said
    assert rows(store, "SELECT uuid FROM workload") == before
    assert rows(store, "SELECT count(DISTINCT boundary_id) FROM fc2_result") == [(1,)]
    assert rows(store, "SELECT count(*) FROM fc2_boundary") == [(1,)]


def test_what_fails_there_is_told_and_kept_as_here(store: Store, nodes: Nodes) -> None:
    capture(store, SMALL[0], "cpu", 7)
    (sha256,) = rows(store, "SELECT blob_sha256 FROM workload_input WHERE name = 'weight'")[0]
    store.blobs.path(sha256).unlink()
    (found,) = swept(store, nodes, stored_subjects(store, Subject("cpu"), ["last"]))
    assert found.exit_code == 4 and found.said.startswith("no blob ")
    assert rows(store, "SELECT status, exit_code FROM run WHERE mode = 'sweep'") == [("failed", 4)]


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """`kill(2)`: the first two workers that get a boundary are killed right then."""

    def arm(times: int) -> list[int]:
        killed: list[int] = []
        give = _Sweeps._send

        def send(sweeps: _Sweeps, going: Going, lacking: Sequence[str]) -> None:
            give(sweeps, going, lacking)
            if len(killed) < times and going.greeting is not None:
                killed.append(going.greeting["pid"])
                os.kill(killed[-1], signal.SIGKILL)

        monkeypatch.setattr(_Sweeps, "_send", send)
        return killed

    return arm


def test_a_lost_worker_is_replaced_once(
    store: Store, nodes: Nodes, kill: Callable[[int], list[int]]
) -> None:
    killed = kill(1)
    (found,) = swept(store, nodes, [Subject("cpu", problem=SMALL[0])])
    assert len(killed) == 1 and found.exit_code == 0, found.said
    assert rows(store, "SELECT count(*) FROM run WHERE mode = 'sweep'") == [(1,)]


def test_a_boundary_lost_twice_is_an_error_row_that_names_the_workers(
    store: Store, nodes: Nodes, kill: Callable[[int], list[int]]
) -> None:
    killed = kill(2)
    (found,) = swept(store, nodes, [Subject("cpu", problem=SMALL[0])])
    assert re.fullmatch(
        rf"its Ray worker was lost twice \(node .+, process {killed[0]};"
        rf" then node .+, process {killed[1]}\)",
        found.said,
    )
    sweeps = rows(store, "SELECT status, exit_code, summary FROM run WHERE mode = 'sweep'")
    assert sweeps == [("error", 1, found.said)]


def test_an_interrupt_keeps_what_was_swept_and_ends_our_workers(store: Store, nodes: Nodes) -> None:
    def stop(_: Swept) -> None:
        raise KeyboardInterrupt

    subjects = [Subject("cpu", problem=problem) for problem in SMALL]
    with pytest.raises(KeyboardInterrupt):
        sweep_each(store, subjects, ASK, ray=nodes.address, told=stop)
    assert rows(store, "SELECT mode, status FROM run ORDER BY id") == [
        ("sweeps", "interrupted"),
        ("sweep", "passed"),
    ]
    deadline = time.monotonic() + 20
    while nodes.workers():
        assert time.monotonic() < deadline, "a worker outlived the interrupt"
        time.sleep(0.1)


def test_a_gpu_backend_needs_a_gpu_in_the_cluster(store: Store, nodes: Nodes) -> None:
    with pytest.raises(EnvironmentLacking, match="the Ray cluster has no GPU"):
        swept(store, nodes, [Subject("cublaslt", problem=SMALL[0])])
