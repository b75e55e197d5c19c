"""SQLModel sessions lose no update, and tell faults as the rest does."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from pathlib import Path

import pytest
from sqlmodel import select

from kclab.core.errors import DatabaseMissing
from kclab.db.connection import connect_read
from kclab.db.models import Environment, Run
from kclab.db.session import session
from kclab.db.store import Store
from tests.db.filled import fill

ROUNDS = 50


def _count_up(path: Path, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    for _ in range(ROUNDS):
        with session(path) as current:
            row = current.exec(select(Run)).one()
            row.exit_code = (row.exit_code or 0) + 1
            current.add(row)


def test_four_processes_that_read_change_and_write_lose_no_update(store: Store) -> None:
    fill(store)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    workers = [context.Process(target=_count_up, args=(store.database, barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    with closing(connect_read(store.database)) as connection:
        assert connection.execute("SELECT exit_code FROM run").fetchone()[0] == 4 * ROUNDS


def test_a_session_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(KeyError), session(store.database) as current:
        current.add(Environment(sha256="a", os="b", python="c", facts="{}"))
        current.flush()
        raise KeyError
    with session(store.database) as current:
        assert current.exec(select(Environment)).all() == []


def test_rows_are_objects_that_outlive_their_session(store: Store) -> None:
    with session(store.database) as current:
        row = Environment(sha256="a", os="b", python="c", facts="{}")
        current.add(row)
    assert row.id == 1
    assert row.os == "b"


def test_a_session_creates_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissing), session(tmp_path / "kclab.db"):
        pass
    assert list(tmp_path.iterdir()) == []
