"""What holds a capture run within its bounds: per axes, bytes, disk, queue, and the stall."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from kclab.capture.backlog import Backlog
from kclab.capture.control import ControlFolder
from kclab.capture.snapshot import Snapshot
from kclab.core.families import FAMILIES
from kclab.db.store import Store
from tests.capture.recording import WEIGHT, recording


def test_at_most_k_captures_of_a_definition_at_the_same_axes(store: Store) -> None:
    with recording(store, max_per_axes=2) as session:
        for step in range(5):
            session.gemm(rows=1, step=step)
            session.gemm(rows=2, step=step, variant="rows_2")
        session.drain()
        rows = [s.receipt["axes"]["M"] for s in session.captures()]
    assert sorted(rows) == [1, 1, 2, 2]


def test_the_limit_per_axes_holds_over_all_processes(store: Store) -> None:
    with recording(store, max_per_axes=3) as session:
        recorders = [session.recorder, session.another(), session.another()]
        for step in range(3):
            for recorder in recorders:
                session.recorder = recorder
                session.gemm(step=step)
        for recorder in recorders:
            assert recorder.drain(30)
        assert len(session.captures()) == 3
        for recorder in recorders[1:]:
            recorder.close(5)
        session.recorder = recorders[0]


def test_a_place_given_back_can_be_taken_again(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run")
    control.create()
    first = control.claim("d", "{}", 1)
    assert first is not None
    assert control.claim("d", "{}", 1) is None
    control.release(first)
    assert control.claim("d", "{}", 1) == first


def test_new_bytes_stay_below_max_bytes(store: Store) -> None:
    with recording(store, max_per_axes=None, max_bytes=1000) as session:
        for step in range(20):
            session.gemm(rows=8, step=step)
            session.drain()
        sizes = session.active.connection.execute("SELECT sum(nbytes) FROM blob").fetchone()[0]
        assert 700 < sizes <= 1000
        assert session.counts()["over --max-bytes 1000"] > 0


def test_content_that_is_stored_already_costs_no_allowance(store: Store) -> None:
    with recording(store, max_per_axes=None, max_bytes=1000) as session:
        a = torch.ones(8, 4)
        for step in range(20):
            session.record({"A": a, "W": WEIGHT}, {"C": a @ WEIGHT.T}, step=step)
            session.drain()
        assert len(session.captures()) == 20


def test_a_size_estimate_is_checked_against_free_disk_before_the_first_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlFolder, "free_bytes", lambda self: 500)
    with recording(store, max_per_axes=4) as session:
        session.gemm(rows=4)  # 160 bytes, four of which would not fit
        session.drain()
        assert session.captures() == []
        assert any("not enough disk space: about 640 bytes" in c for c in session.counts())
    assert not store.blobs.root.exists()


def test_a_full_queue_drops_and_counts_when_asked_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(Backlog, "admit", lambda self, n, *, wait: asked.append(wait))
    with recording(store, on_full="drop") as session:
        session.gemm()
        session.drain()
        assert session.captures() == []
        assert session.counts()["the queue is full"] == 1
        assert session.control.reserved() == 0
    assert asked == [False]


def test_a_full_queue_admits_nothing_more_without_waiting() -> None:
    backlog: Backlog[str] = Backlog(100)
    backlog.admit(80, wait=False)
    backlog.put("first", 80)
    assert not backlog.admit(80, wait=False)


def test_a_full_queue_makes_the_engine_wait_for_the_writer() -> None:
    backlog: Backlog[str] = Backlog(100)
    assert backlog.admit(80, wait=True)
    backlog.put("first", 80)
    admitted = threading.Event()
    thread = threading.Thread(target=lambda: backlog.admit(80, wait=True) and admitted.set())
    thread.start()
    assert not admitted.wait(0.1)
    assert [item for item, _ in backlog.take_all(1)] == ["first"]
    backlog.written(80)
    assert admitted.wait(5)
    thread.join()


def test_a_call_larger_than_the_queue_passes_alone() -> None:
    backlog: Backlog[str] = Backlog(10)
    assert backlog.admit(1000, wait=True)


def test_a_call_inside_another_one_never_waits_for_it() -> None:
    backlog: Backlog[str] = Backlog(100)
    assert backlog.admit(90, wait=True)
    assert backlog.admit(90, wait=True), "nothing is queued, so nothing would ever free room"


def test_nobody_waits_for_a_writer_that_is_gone() -> None:
    backlog: Backlog[str] = Backlog(100)
    backlog.admit(80, wait=True)
    backlog.put("stuck", 80)
    backlog.close()
    assert not backlog.admit(80, wait=True)


def test_a_repeated_weight_is_neither_copied_nor_hashed_again(store: Store) -> None:
    size = 1024
    what = FAMILIES["dense_gemm"].make(dtype="fp32", n=size, k=size)
    weight = torch.randn(size, size)
    with recording(store, max_per_axes=None) as session:
        for step in range(2):
            a = torch.randn(1, size)
            pending = session.record({"A": a, "W": weight}, {"C": a @ weight.T}, what, step=step)
            assert pending is not None
            session.drain()
        stored = pending.inputs["W"]
        assert isinstance(stored, Snapshot)
        assert stored.copy is None and stored.bytes_to_copy == 0 and stored.digest is not None
        assert torch.equal(session.captures()[1].inputs["W"], weight)


def test_items_wait_while_a_step_runs() -> None:
    backlog: Backlog[str] = Backlog(100)
    taken: list[str] = []
    writer = threading.Thread(target=lambda: taken.extend(i for i, _ in backlog.take_all(30)))
    with backlog.step():
        backlog.admit(10, wait=True)
        backlog.put("a", 10)
        writer.start()
        writer.join(0.1)
        assert writer.is_alive() and not taken
    writer.join(10)
    assert taken == ["a"]


def test_items_do_not_wait_for_a_step_that_waits_for_room() -> None:
    backlog: Backlog[str] = Backlog(100)
    with backlog.step():
        backlog.admit(45, wait=True)
        backlog.put("a", 45)
        waiting = threading.Thread(target=backlog.admit, args=(60,), kwargs={"wait": True})
        waiting.start()
        assert [item for item, _ in backlog.take_all(30)] == ["a"]
        backlog.written(45)
        waiting.join(10)
        assert not waiting.is_alive()


def test_items_are_taken_beside_a_long_step_after_the_timeout() -> None:
    backlog: Backlog[str] = Backlog(100)
    with backlog.step():
        backlog.put("a", 10)
        assert [item for item, _ in backlog.take_all(0.01)] == ["a"]
