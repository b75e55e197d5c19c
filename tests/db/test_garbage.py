"""`kclab db gc` removes what nothing uses, and nothing that somebody may be about to use."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kclab.db.check import check
from kclab.db.connection import writing
from kclab.db.garbage import blob_users, find_garbage, remove_garbage
from kclab.db.rows import BlobRow, add_blobs
from kclab.db.runs import run
from kclab.db.store import Store
from tests.capture.recording import recording
from tests.conftest import Cli
from tests.db.filled import add_bytes, fill

HOUR_US = 3_600_000_000


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store, examples=2)
    return store


def age(path: Path, hours: float = 2) -> None:
    """Make a file look untouched for so long."""
    stat = path.stat()
    os.utime(path, (stat.st_atime - hours * 3600, stat.st_mtime - hours * 3600))


def old_stray(store: Store, data: bytes = b"abcd") -> BlobRow:
    row = add_bytes(store.blobs, data)
    age(store.blobs.path(row.sha256))
    return row


def unused_row(store: Store) -> BlobRow:
    """A blob that had its users removed."""
    row = old_stray(store)
    with closing(store.write()) as connection, writing(connection):
        add_blobs(connection, [row])
    return row


def clean(store: Store) -> None:
    remove_garbage(store, find_garbage(store, HOUR_US))


def test_what_is_used_stays(filled: Store) -> None:
    for sha256 in list(filled.blobs.present()):
        age(filled.blobs.path(sha256))
    assert find_garbage(filled, HOUR_US).count == 0
    clean(filled)
    assert check(filled).faults == []


def test_all_three_kinds_go_and_the_rest_is_sound(filled: Store) -> None:
    unused, stray = unused_row(filled), old_stray(filled, b"efgh")
    temporary = filled.blobs.batch().temporary()
    temporary.write_bytes(b"half")
    age(temporary)
    garbage = find_garbage(filled, HOUR_US)
    assert (garbage.rows, garbage.files) == ((unused.sha256,), (stray.sha256,))
    assert garbage.leftovers == (temporary,)
    removed = remove_garbage(filled, garbage)
    assert (removed.rows, removed.files, removed.leftovers) == (1, 1, 1)
    assert removed.nbytes == garbage.nbytes > 8
    assert check(filled).faults == []
    assert list(filled.blobs.leftovers()) == []


def test_an_unused_row_whose_bytes_are_elsewhere_goes(filled: Store) -> None:
    with closing(filled.write()) as connection, writing(connection):
        add_blobs(connection, [BlobRow("ab" * 32, "float32", (2,), 8, present=False, hint="x")])
    clean(filled)
    assert check(filled).of("absent") == []


def test_what_was_touched_lately_stays(filled: Store) -> None:
    stray = add_bytes(filled.blobs, b"abcd")
    filled.blobs.batch().temporary().write_bytes(b"half")
    assert find_garbage(filled, HOUR_US).count == 0
    assert find_garbage(filled, 0).files == (stray.sha256,)


def test_a_writer_that_takes_an_old_file_makes_it_young(filled: Store) -> None:
    stray = old_stray(filled)
    add_bytes(filled.blobs, b"abcd")
    assert stray.sha256 not in find_garbage(filled, HOUR_US).files


def test_a_writer_that_knows_the_row_makes_its_file_young(filled: Store) -> None:
    row = unused_row(filled)
    filled.blobs.batch().add("float32", (1,), b"abcd", known=True)
    assert row.sha256 not in find_garbage(filled, HOUR_US).rows


def test_a_file_that_became_young_since_the_listing_comes_back(filled: Store) -> None:
    stray = old_stray(filled)
    garbage = find_garbage(filled, HOUR_US)
    filled.blobs.batch().add("float32", (1,), b"abcd")
    removed = remove_garbage(filled, garbage)
    assert removed.files == 0
    assert filled.blobs.verify(stray.sha256)
    assert list(filled.blobs.leftovers()) == []


def test_a_file_that_got_its_row_since_the_listing_stays(filled: Store) -> None:
    stray = old_stray(filled)
    garbage = find_garbage(filled, HOUR_US)
    with closing(filled.write()) as connection, writing(connection):
        add_blobs(connection, [stray])
    assert remove_garbage(filled, garbage).files == 0
    assert check(filled).faults == []


def test_a_row_that_got_a_user_since_the_listing_stays(filled: Store) -> None:
    row = unused_row(filled)
    garbage = find_garbage(filled, HOUR_US)
    with closing(filled.write()) as connection, writing(connection):
        connection.execute("UPDATE capture_output SET blob_sha256 = ?", (row.sha256,))
    assert remove_garbage(filled, garbage).rows == 0
    assert check(filled).of("missing") == []


def test_while_a_run_goes_on_no_row_goes_nor_any_file_of_its_time(filled: Store) -> None:
    row, before = unused_row(filled), old_stray(filled, b"efgh")
    with run(filled, "capture", {}) as active:
        during = add_bytes(filled.blobs, b"ijkl")
        garbage = find_garbage(filled, 0)
        assert garbage.alive == (active.uuid,)
        assert (garbage.rows, garbage.files) == ((), (before.sha256,))
    assert set(find_garbage(filled, 0).files) == {before.sha256, during.sha256}
    assert find_garbage(filled, 0).rows == (row.sha256,)


def test_a_run_that_was_killed_holds_nothing_up(filled: Store) -> None:
    code = (
        "import os, sys; from pathlib import Path; from kclab.db.runs import run\n"
        "from kclab.db.store import Store\n"
        "with run(Store.at(Path(sys.argv[1])), 'capture', {}): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(filled.database)], check=False)
    row = unused_row(filled)
    assert find_garbage(filled, HOUR_US).rows == (row.sha256,)


def test_every_table_that_names_a_blob_counts_as_a_user(filled: Store) -> None:
    with closing(filled.read()) as connection:
        users = set(blob_users(connection))
    assert {("workload_input", "blob_sha256"), ("capture_output", "blob_sha256")} <= users


def test_cleaning_beside_writers_loses_nothing(store: Store) -> None:
    """Writers take and commit the very blobs that a cleaner without any patience wants."""
    fill(store)
    stop = threading.Event()
    datas = [os.urandom(4) for _ in range(20)]

    def write() -> None:
        with closing(store.write()) as connection:
            while not stop.is_set():
                for data in datas:
                    row = add_bytes(store.blobs, data)
                    with writing(connection):
                        add_blobs(connection, [row])

    # A patience of 0 would be wrong use: between a file and its row lies a moment.
    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(30):
            remove_garbage(store, find_garbage(store, 500_000))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    report = check(store)
    assert report.of("missing", "damaged") == []


class TestCommand:
    def test_it_only_lists_unless_told(self, filled: Store, invoke: Cli) -> None:
        stray = old_stray(filled)
        done = invoke("--db", filled.database, "db", "gc")
        assert done.code == 0
        assert "unreferenced" in done.out and stray.sha256[:12] in done.out
        assert "kclab db gc --yes removes it" in done.err
        assert filled.blobs.verify(stray.sha256)

    def test_it_removes_when_told(self, filled: Store, invoke: Cli) -> None:
        stray = old_stray(filled)
        done = invoke("--db", filled.database, "db", "gc", "--yes", "--format", "json")
        assert [row["name"] for row in json.loads(done.out)] == [stray.sha256]
        assert "removed" in done.err
        assert not filled.blobs.path(stray.sha256).exists()

    def test_a_clean_store_says_so(self, filled: Store, invoke: Cli) -> None:
        done = invoke("--db", filled.database, "db", "gc")
        assert (done.code, done.out, done.err) == (0, "", "nothing to remove.\n")

    def test_it_makes_no_database(self, invoke: Cli, tmp_path: Path) -> None:
        assert invoke("db", "gc", "--yes").code == 5
        assert list(tmp_path.iterdir()) == []

    def test_it_first_reads_in_what_a_killed_capture_left_aside(
        self, store: Store, invoke: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its blobs have no row yet, and would be taken for garbage."""
        monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "50")
        with recording(store) as session:
            with closing(sqlite3.connect(store.database, isolation_level=None)) as blocker:
                blocker.execute("BEGIN IMMEDIATE")
                session.gemm()
                session.recorder.close(30)
            session.plan.save()
        dead = "nobody:999999999:1"
        for file in (session.control.path / "workers").iterdir():
            facts = json.loads(file.read_text())
            file.unlink()
            session.control.write_worker(dead, {**facts, "process": dead})
        for sha256 in list(store.blobs.present()):
            age(store.blobs.path(sha256))
        assert len(find_garbage(store, HOUR_US).files) == 3
        done = invoke("--db", store.database, "db", "gc", "--yes")
        assert done.code == 0 and "1 killed capture settled first" in done.err
        report = check(store)
        assert (report.blobs, report.faults) == (3, [])
