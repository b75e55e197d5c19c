"""Imports that are killed, that race each other, or that meet a full queue of writers."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kclab.blob import batch
from kclab.core.errors import DatabaseBusy, EnvironmentLacking
from kclab.dataset import arrivals, source_file
from kclab.dataset.importing import import_path
from kclab.db.store import Store
from tests.dataset.builder import RootBuilder
from tests.dataset.conftest import Rows

CAPTURES = 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validated root of a few hundred small captures."""
    source = RootBuilder(tmp_path_factory.mktemp("many"))
    for step in range(CAPTURES):
        source.double(float(step), 0.5, step=step)
    return source.report().root


def start_import(store: Store, root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kclab", "--db", str(store.database), "import", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def counts(store: Store) -> tuple[int, int, int]:
    with closing(sqlite3.connect(store.database)) as connection:
        return tuple(  # type: ignore[return-value]
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("capture", "workload", "replay")
        )


def test_a_killed_import_leaves_all_or_nothing(
    tmp_path: Path, empty_database: Path, root: Path
) -> None:
    chance = random.Random(7)
    landed = []
    for attempt in range(6):
        store = Store.at(tmp_path / str(attempt) / "kclab.db")
        store.database.parent.mkdir()
        store.database.write_bytes(empty_database.read_bytes())
        process = start_import(store, root)
        while process.poll() is None and not (store.blobs.root / "tmp").exists():
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        started = (store.blobs.root / "tmp").exists()
        process.communicate()
        assert started
        assert process.returncode in (0, -signal.SIGKILL)
        landed.append(counts(store))
        assert landed[-1] in ((0, 0, 0), (CAPTURES,) * 3)
        assert_whole(store)
        import_path(store, root)
        assert counts(store) == (CAPTURES,) * 3
        assert_whole(store)
    assert (0, 0, 0) in landed, "no kill came before the commit: make the root larger"


def assert_whole(store: Store) -> None:
    """Every blob that a row vouches for is there, with its content."""
    with closing(sqlite3.connect(store.database)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        digests = [row[0] for row in connection.execute("SELECT sha256 FROM blob WHERE present")]
    for digest in digests:
        store.blobs.verify(digest)


def test_concurrent_imports_of_one_root_add_it_once(store: Store, root: Path, rows: Rows) -> None:
    processes = [start_import(store, root) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert counts(store) == (CAPTURES,) * 3
    assert rows("SELECT count(*) FROM run WHERE status = 'passed'") == [(3,)]
    assert not list((store.blobs.root / "tmp").iterdir())
    assert_whole(store)


def test_a_writer_that_holds_the_lock_leaves_no_half_import(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_path(store, root)  # the run rows below need no lock for long; the content does
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "50")
    with closing(sqlite3.connect(store.database, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match=str(store.database)):
            import_path(store, root)
        holder.execute("ROLLBACK")
    assert counts(store) == (CAPTURES,) * 3


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    store: Store, root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def full(path: str) -> int:
        if len(made) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        made.append(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    monkeypatch.setattr(arrivals, "HELD_BYTES", 0)  # so that everything waits in files
    monkeypatch.setattr(source_file, "_create", full)
    with pytest.raises(EnvironmentLacking, match="No space left"):
        import_path(store, root)
    assert counts(store) == (0, 0, 0)
    assert not [path for path in store.blobs.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("lacking", ["f_bavail", "f_favail"])
def test_a_disk_without_room_is_found_before_anything_is_written(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    room = {"f_frsize": 4096, "f_bavail": 1 << 20, "f_files": 1 << 20, "f_favail": 1 << 20}
    room[lacking] = CAPTURES
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**room))
    with pytest.raises(EnvironmentLacking, match="No space left"):
        import_path(store, root)
    assert counts(store) == (0, 0, 0)
    assert not [path for path in store.blobs.root.rglob("*") if path.is_file()]


def test_what_a_crash_cut_off_is_never_believed(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all = batch.write_all
    written = []

    def fail(descriptor: int, header: bytes, data: Any) -> None:
        written.append(descriptor)
        if len(written) == 5:
            write_all(descriptor, header)  # as a crash leaves it: under its name, and not whole
            raise KeyboardInterrupt
        write_all(descriptor, header, data)

    monkeypatch.setattr(batch, "write_all", fail)
    with pytest.raises(KeyboardInterrupt):
        import_path(store, root)
    assert counts(store) == (0, 0, 0)
    assert len(list(store.blobs.present())) == 5
    monkeypatch.undo()
    import_path(store, root)
    assert counts(store) == (CAPTURES,) * 3
    assert_whole(store)
