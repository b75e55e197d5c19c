"""Databases of one folder share its blobs: no clean-up of one takes what another needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclab.core.errors import DatabaseProblem
from kclab.db.check import check
from kclab.db.garbage import find_garbage, remove_garbage
from kclab.db.store import Store, open_for_writing
from tests.conftest import Cli
from tests.db.filled import fill
from tests.db.test_garbage import HOUR_US, age, old_stray, unused_row


@pytest.fixture
def shared(store: Store) -> tuple[Store, Store]:
    """Two stores of one folder; only the first has anything in it, all of it old."""
    fill(store, examples=2)
    for sha256 in store.blobs.present():
        age(store.blobs.path(sha256))
    other = Store.at(store.database.with_name("other.db"))
    open_for_writing(other)
    return store, other


def test_what_another_database_names_stays(shared: tuple[Store, Store]) -> None:
    store, other = shared
    stray = old_stray(other)
    found = find_garbage(other, HOUR_US)
    assert (found.rows, found.files) == ((), (stray.sha256,))
    remove_garbage(other, found)
    assert not check(store).faults


def test_a_row_that_only_this_database_stopped_using_stays(shared: tuple[Store, Store]) -> None:
    store, other = shared
    row = unused_row(other)
    assert find_garbage(store, HOUR_US).files == ()
    assert find_garbage(other, HOUR_US).rows == (row.sha256,)


def test_a_check_calls_nothing_unreferenced_that_another_names(
    shared: tuple[Store, Store],
) -> None:
    assert check(shared[1]).of("unreferenced") == []


def test_a_neighbour_that_cannot_be_read_stops_the_clean_up(
    shared: tuple[Store, Store], invoke: Cli
) -> None:
    store, other = shared
    whole = store.database.read_bytes()
    store.database.write_bytes(whole[:8192])
    store.database.with_name(f"{store.database.name}-wal").unlink(missing_ok=True)
    with pytest.raises(DatabaseProblem, match="move it to another folder"):
        find_garbage(other, HOUR_US)
    done = invoke("--db", other.database, "db", "check", "--format", "json")
    assert done.code == 0 and json.loads(done.out)["ok"]
    store.database.write_bytes(whole)


def test_what_is_no_database_of_kclabs_is_left_out(
    shared: tuple[Store, Store], tmp_path: Path
) -> None:
    _, other = shared
    other.database.with_name("notes.db").write_bytes(b"not SQLite")
    assert find_garbage(other, HOUR_US).files == ()
