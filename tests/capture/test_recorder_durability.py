"""What is acknowledged is not lost: locks, forks, full disks, many writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kclab.capture.control import ControlFolder, is_alive, process_key
from kclab.capture.coverage import run_coverage
from kclab.capture.entries import CaptureEntry, from_json
from kclab.capture.plan import CapturePlan
from kclab.capture.recorder import Recorder
from kclab.capture.settle import adopt_abandoned, settle
from kclab.core.errors import BadUsage
from kclab.db.store import Store
from tests.capture.recording import WEIGHT, recording, stored_captures


def test_a_worker_acknowledges_and_confirms_its_empty_queue(store: Store) -> None:
    with recording(store) as session:
        session.recorder.acknowledge("engine")
        session.gemm()
        assert session.recorder.drain(30)
        row = session.active.connection.execute("SELECT * FROM capture_worker").fetchone()
        assert row["process"] == process_key()
        assert row["engine"] == "engine"
        assert row["acknowledged_us"] <= row["drained_us"]
        assert session.control.workers()[process_key()]["state"] == "drained"
        progress = session.control.progress(process_key())
        assert (progress.handed, progress.given_up, progress.stored) == (1, 0, 1)
        assert progress.moved and not progress.pending


def test_a_locked_database_spools_and_the_parent_reads_the_spool_in(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "100")
    with recording(store) as session:
        session.gemm()
        session.drain()
        blocker = sqlite3.connect(store.database, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        for step in (1, 2, 3):
            session.gemm(step=step)
        assert time.monotonic() - started < 0.1, "the engine does not wait for a lock"
        session.drain()
        assert len(session.captures()) == 1
        blocker.execute("ROLLBACK")
        blocker.close()
        settle(session.active.connection, session.active.id, session.control)
        settle(session.active.connection, session.active.id, session.control)
        stored = session.captures()
        coverage = run_coverage(session.active.connection, session.active.id)
    assert [s.row["step"] for s in stored] == [0, 1, 2, 3]
    assert all(s.outputs["C"].equal(s.inputs["A"] @ WEIGHT.T) for s in stored)
    assert [(c.captured, c.selected) for c in coverage] == [(4, 4)]


def test_a_torn_last_spool_line_is_left_out(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run")
    control.create()
    control.spool("host:1:2", '{"entry": "count", "process": "p", "counts": {}}\n{"entry": "cou')
    assert [line["entry"] for line in control.spooled()] == ["count"]


def test_a_killed_parents_spool_is_adopted_by_the_next_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "50")
    with recording(store) as session:
        blocker = sqlite3.connect(store.database, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        session.gemm()
        session.recorder.close(30)
        blocker.close()
        session.plan.save()
    assert list(stored_captures(store)) == []
    # The worker has to be gone as well.
    dead = "nobody:999999999:1"
    for file in (session.control.path / "workers").iterdir():
        facts = json.loads(file.read_text())
        file.unlink()
        session.control.write_worker(dead, {**facts, "process": dead})
    connection = store.write()
    assert adopt_abandoned(connection, store.database) == 1
    connection.close()
    assert len(list(stored_captures(store))) == 1
    assert not session.control.path.exists()


def test_a_spool_line_is_the_entry_word_for_word(store: Store) -> None:
    with recording(store) as session:
        session.gemm(receipt={"note": "ü\u2028"})
        blocker = sqlite3.connect(store.database, isolation_level=None)
        blocker.execute("PRAGMA busy_timeout=1")
        session.recorder.close(30)
        blocker.close()
        (stored,) = session.captures()
        row = session.active.connection.execute("SELECT body FROM definition").fetchone()
    assert stored.receipt["note"] == "ü\u2028"
    assert json.loads(row["body"])["name"] == "dense_gemm_fp32_nt_n3_k4"


def test_an_entry_survives_json() -> None:
    from kclab.capture.entries import to_line
    from kclab.db.rows import BlobRow, CaptureRow, InputValue

    capture = CaptureRow("u", "op", "{}", 1, {"a": 1}, [("C", "b" * 64)])
    entry = CaptureEntry(
        {"name": "d"},
        None,
        (BlobRow("b" * 64, "float32", (1, 2), 8),),
        "w",
        {"M": 1},
        {"A": InputValue(blob="b" * 64), "s": InputValue(scalar="0.5")},
        capture,
        {},
        5,
    )
    assert from_json(json.loads(to_line(entry))) == entry


def test_a_blob_that_cannot_be_written_is_counted_and_ends_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kclab.blob.batch import BlobBatch

    add, failures = BlobBatch.add, [OSError(28, "No space left on device")]

    def once(self: BlobBatch, *args: object, **options: object) -> str:
        if failures:
            raise failures.pop()
        return add(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BlobBatch, "add", once)
    with recording(store) as session:
        session.gemm(step=0)
        session.gemm(step=1)
        session.drain()
        assert [s.row["step"] for s in session.captures()] == [1]
        assert any("No space left" in outcome for outcome in session.counts())
        progress = session.control.progress(process_key())
        assert (progress.handed, progress.given_up, progress.stored) == (2, 1, 1)


def test_a_damaged_file_without_a_row_is_not_trusted(store: Store) -> None:
    a = torch.ones(1, 4)
    with recording(store) as session:
        session.record({"A": a, "W": WEIGHT}, {"C": a @ WEIGHT.T})
        session.drain()
        session.active.connection.execute("DELETE FROM capture")
        session.active.connection.execute("DELETE FROM workload")
        session.active.connection.execute("DELETE FROM blob")
        for path in store.blobs.root.rglob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        again = session.another()
        session.recorder.close(5)
        session.recorder = again
        session.record({"A": a, "W": WEIGHT}, {"C": a @ WEIGHT.T}, step=1)
        session.drain()
        for digest in store.blobs.present():
            store.blobs.verify(digest)


def test_threads_of_one_process_lose_nothing(store: Store) -> None:
    with recording(store, max_per_axes=None) as session:

        def work(thread: int) -> None:
            for step in range(25):
                session.gemm(rows=thread + 1, step=step, request_id=f"thread {thread}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        session.drain()
        assert len(session.captures()) == 100


def _capture_many(plan_text: str, rank: int) -> None:
    os.environ["RANK"] = str(rank)
    recorder = Recorder(CapturePlan.from_json(plan_text))
    recorder.acknowledge()
    from kclab.capture.call import Call
    from tests.capture.recording import GEMM

    for step in range(50):
        a = torch.full((1, 4), float(step))
        pending = recorder.begin(Call(GEMM, {"A": a, "W": WEIGHT}, "op", "r", step))
        assert pending is not None
        recorder.finish(pending, {"C": a @ WEIGHT.T})
    assert recorder.close(60)


def test_four_processes_capturing_into_one_store_lose_nothing(store: Store) -> None:
    with recording(store, max_per_axes=None) as session:
        spawn = multiprocessing.get_context("spawn")
        processes = [
            spawn.Process(target=_capture_many, args=(session.plan.to_json(), rank))
            for rank in range(4)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        settle(session.active.connection, session.active.id, session.control)
        stored = session.captures()
    assert len(stored) == 200
    assert len({s.row["uuid"] for s in stored}) == 200
    assert len({s.workload for s in stored}) == 50, "one content, a receipt for each rank"
    assert {s.row["rank"] for s in stored} == {0, 1, 2, 3}
    for digest in store.blobs.present():
        store.blobs.verify(digest)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forks_child_captures_on_its_own(store: Store) -> None:
    with recording(store) as session:
        session.gemm(step=0)
        session.drain()
        child = os.fork()
        if child == 0:
            try:
                session.recorder.after_fork()
                session.gemm(step=1)
                ended = session.recorder.close(30)
            finally:
                os._exit(0 if ended else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session.gemm(step=2)
        session.drain()
        stored = session.captures()
    assert sorted(s.row["step"] for s in stored) == [0, 1, 2]
    assert len({s.row["process_id"] for s in stored}) == 2


def test_a_recorder_whose_run_has_ended_refuses_quietly(store: Store) -> None:
    with recording(store) as session:
        session.recorder.acknowledge()
        session.control.remove()
        assert session.gemm() is None
        assert session.counts()["the run has ended"] == 1


def test_concurrent_claims_never_exceed_the_limit(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run")
    control.create()
    taken: list[str | None] = []
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: control.claim("d", "{}", 5), range(40)))
    assert len([t for t in taken if t]) == 5


def test_concurrent_reservations_never_exceed_the_allowance(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "run")
    control.create()
    with ThreadPoolExecutor(8) as pool:
        granted = list(pool.map(lambda _: control.reserve(7, 100), range(40)))
    assert sum(granted) == 14
    assert control.reserved() == 98


def test_a_process_is_told_from_another_one_with_its_pid() -> None:
    assert is_alive(process_key())
    host, pid, _ = process_key().rsplit(":", 2)
    assert not is_alive(f"{host}:{pid}:12345")


def test_a_plan_survives_json(tmp_path: Path) -> None:
    plan = CapturePlan(tmp_path / "kclab.db", 1, "u", tmp_path, steps=(0, 4))
    rich = replace(plan, definition_folders=(tmp_path,), provenance={"model": "ü"}, adapters=("a",))
    assert CapturePlan.from_json(rich.to_json()) == rich
    assert CapturePlan.load(rich.save()) == rich


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"database": 1}'])
def test_what_is_no_plan_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(BadUsage, match=r"plan\.json"):
        CapturePlan.load(path)


def test_the_writer_thread_ends_with_the_recorder(store: Store) -> None:
    before = threading.active_count()
    with recording(store) as session:
        session.gemm()
        assert session.recorder.close(30)
        assert session.recorder.close(30), "closing twice is harmless"
        assert not any(t.name == "kclab-writer" for t in threading.enumerate()[before:])
