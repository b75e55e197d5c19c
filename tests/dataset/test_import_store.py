"""Merging stores: whatever rows the other one has, by stable keys, nothing twice."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.core.errors import BadUsage, DatabaseDamaged, DatabaseNewer, DatasetRefused
from kclab.dataset.importing import import_path
from kclab.dataset.merge import read_tables
from kclab.dataset.options import ImportOptions, RootRefused
from kclab.db.connection import writing
from kclab.db.runs import run
from kclab.db.store import Store
from tests.dataset.builder import RootBuilder, floats
from tests.dataset.conftest import Rows

STABLE = {
    "run": "SELECT uuid, command, status, argv, params, host, note FROM run",
    "environment": "SELECT sha256, os, torch, facts FROM environment",
    "run_tag": "SELECT r.uuid, t.tag FROM run_tag t JOIN run r ON r.id = t.run_id",
    "definition": "SELECT name, sha256, body FROM definition",
    "blob": "SELECT sha256, dtype, shape, nbytes, present FROM blob",
    "workload": "SELECT w.uuid, d.sha256, w.axes, w.extra FROM workload w"
    " JOIN definition d ON d.id = w.definition_id",
    "workload_input": "SELECT w.uuid, i.name, i.blob_sha256, i.scalar, i.random FROM workload_input"
    " i JOIN workload w ON w.id = i.workload_id",
    "request": "SELECT r.uuid, q.request_id, q.payload FROM request q"
    " JOIN run r ON r.id = q.run_id",
    "capture": "SELECT c.uuid, r.uuid, w.uuid, q.request_id, c.site, c.captured_us, c.receipt"
    " FROM capture c JOIN run r ON r.id = c.run_id JOIN workload w ON w.id = c.workload_id"
    " LEFT JOIN request q ON q.id = c.request_pk",
    "capture_output": "SELECT c.uuid, o.ordinal, o.name, o.blob_sha256 FROM capture_output o"
    " JOIN capture c ON c.id = o.capture_id",
    "replay": "SELECT r.uuid, p.subject, c.uuid, p.status, p.reason, p.device, p.started_us,"
    " e.message FROM replay p JOIN run r ON r.id = p.run_id LEFT JOIN capture c"
    " ON c.id = p.capture_id LEFT JOIN error e ON e.id = p.error_id",
    "replay_output": "SELECT p.subject, o.ordinal, o.name, o.passed, o.max_abs FROM replay_output o"
    " JOIN replay p ON p.id = o.replay_id",
    "measurement": "SELECT r.uuid, m.name, m.ratio FROM measurement m"
    " JOIN run r ON r.id = m.run_id",
    "timing_sample": "SELECT m.name, t.round, t.position, t.arm, t.ms FROM timing_sample t"
    " JOIN measurement m ON m.id = t.measurement_id",
    "error": "SELECT r.uuid, e.operation, e.message FROM error e JOIN run r ON r.id = e.run_id",
}
"""The content of each table by keys that mean the same in every file."""


def contents(store: Store, without_run: str | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a store, by stable keys, sorted; without those of one run."""
    with closing(sqlite3.connect(store.database)) as connection:
        found = {name: connection.execute(sql).fetchall() for name, sql in STABLE.items()}
    return {
        name: sorted((r for r in rows if without_run is None or without_run not in r), key=repr)
        for name, rows in found.items()
    }


@pytest.fixture
def other(tmp_path: Path, empty_database: Path) -> Store:
    """A second store with captures, verdicts, measurements, labels and an error."""
    database = tmp_path / "other" / "kclab.db"
    database.parent.mkdir()
    shutil.copyfile(empty_database, database)
    store = Store.at(database)
    source = RootBuilder(tmp_path / "foreign")
    source.double(1, request={"prompt": "a teapot"})
    source.double(2, step=1)
    import_path(store, source.report().root)
    with run(store, "benchmark", {"n": 1}) as parent, writing(parent.connection) as connection:
        connection.execute("INSERT INTO run_tag VALUES (?, 'nightly')", (parent.id,))
        connection.execute(
            "INSERT INTO measurement(run_id, name, ratio, pairs) VALUES (?, 'gemm', 1.1, 50)",
            (parent.id,),
        )
        samples = [(1, i, 0, "A", 0.5 + i) for i in range(50)]
        connection.executemany("INSERT INTO timing_sample VALUES (?,?,?,?,?)", samples)
        connection.execute(
            "INSERT INTO error(run_id, at_us, operation, kind, message)"
            " VALUES (?, 1, 'x', 'y', 'z')",
            (parent.id,),
        )
        parent_id = parent.id
    with run(store, "replay", {}, parent_id=parent_id):
        pass
    return store


def last_run(store: Store) -> str:
    with closing(sqlite3.connect(store.database)) as connection:
        return str(
            connection.execute("SELECT uuid FROM run ORDER BY started_us DESC").fetchone()[0]
        )


def importing_run(store: Store, rows: Rows) -> str:
    return str(rows("SELECT uuid FROM run WHERE params LIKE '%other%'", at=store)[0][0])


def test_everything_arrives_under_its_stable_keys(store: Store, other: Store, rows: Rows) -> None:
    import_path(store, other.database)
    mine = importing_run(store, rows)
    assert contents(store, mine) == contents(other)
    for sha256, *_ in contents(other)["blob"]:
        store.blobs.verify(sha256)


def test_a_runs_parent_comes_along(store: Store, other: Store, rows: Rows) -> None:
    import_path(store, other.database)
    sql = "SELECT p.command FROM run r JOIN run p ON p.id = r.parent_id"
    assert rows(sql) == [("benchmark",)]


def test_a_folder_is_as_good_as_its_database(store: Store, other: Store) -> None:
    assert import_path(store, other.database.parent).captures == 2


def test_a_second_merge_adds_nothing(store: Store, other: Store, rows: Rows) -> None:
    import_path(store, other.database)
    before = contents(store)
    summary = import_path(store, other.database)
    assert (summary.added, summary.blobs, summary.known) == (0, 0, 2)
    assert contents(store, last_run(store)) == before


def test_what_the_other_store_gains_comes_with_the_next_merge(
    store: Store, other: Store, tmp_path: Path, rows: Rows
) -> None:
    import_path(store, other.database)
    source = RootBuilder(tmp_path / "more")
    source.double(7, step=3)
    import_path(other, source.report().root)
    with closing(other.write()) as connection:
        connection.execute(
            "INSERT INTO run_tag SELECT id, 'late' FROM run WHERE command='benchmark'"
        )
    summary = import_path(store, other.database)
    assert (summary.captures, summary.workloads, summary.blobs) == (1, 1, 2)
    assert {tag for (tag,) in rows("SELECT tag FROM run_tag")} == {"nightly", "late"}


def test_merging_both_ways_makes_the_stores_equal(store: Store, other: Store, rows: Rows) -> None:
    import_path(store, other.database)
    import_path(other, store.database)
    mine = last_run(other)
    assert contents(other, mine)["capture"] == contents(store)["capture"]
    assert contents(other, mine)["replay_output"] == contents(store)["replay_output"]


def test_a_damaged_blob_of_the_other_store_refuses_it(
    store: Store, other: Store, rows: Rows
) -> None:
    path = other.blobs.path(floats(1).digest())
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    with pytest.raises(RootRefused, match=floats(1).digest()[:12]):
        import_path(store, other.database)
    assert rows("SELECT count(*) FROM capture") == [(0,)]


def test_a_missing_blob_of_the_other_store_refuses_it(store: Store, other: Store) -> None:
    other.blobs.path(floats(1).digest()).unlink()
    with pytest.raises(RootRefused, match="no such file"):
        import_path(store, other.database)


def test_captures_without_a_passing_verdict_are_refused_or_left_out(
    store: Store, other: Store, rows: Rows
) -> None:
    with closing(other.write()) as connection:
        connection.execute("UPDATE replay SET status = 'failed' WHERE capture_id = 2")
    with pytest.raises(RootRefused, match="its last replay failed"):
        import_path(store, other.database)
    summary = import_path(store, other.database, ImportOptions(partial=True))
    assert (summary.captures, summary.workloads, summary.blobs) == (1, 1, 2)
    assert rows("SELECT count(*) FROM replay") == [(1,)]


def test_never_replayed_captures_come_when_asked_for(
    store: Store, other: Store, rows: Rows
) -> None:
    with closing(other.write()) as connection:
        connection.execute("DELETE FROM replay WHERE capture_id = 2")
    options = ImportOptions(include_unvalidated=True)
    summary = import_path(store, other.database, options)
    assert (summary.captures, summary.unvalidated) == (2, 1)
    marked = "SELECT count(*) FROM capture WHERE json_extract(receipt, '$.unvalidated')"
    assert rows(marked) == [(1,)]


def test_absent_blobs_stay_absent_and_arrive_later(
    store: Store, other: Store, tmp_path: Path, rows: Rows
) -> None:
    bare = Store.at(tmp_path / "bare" / "kclab.db")
    bare.database.parent.mkdir()
    shutil.copyfile(other.database, bare.database)
    with closing(bare.write()) as connection:
        connection.execute("UPDATE blob SET present = 0, hint = 'ask the other store'")
    assert import_path(store, bare.database).absent == 3
    assert rows("SELECT DISTINCT present, hint FROM blob") == [(0, "ask the other store")]
    summary = import_path(store, other.database)
    assert (summary.blobs, summary.captures) == (3, 0)
    assert rows("SELECT DISTINCT present, hint FROM blob") == [(1, None)]


def test_a_run_that_was_still_going_is_brought_up_to_date(
    store: Store, other: Store, rows: Rows
) -> None:
    with closing(other.write()) as connection:
        connection.execute("UPDATE run SET status = 'running', finished_us = NULL WHERE id = 2")
    import_path(store, other.database)
    assert ("running",) in rows("SELECT status FROM run")
    with closing(other.write()) as connection:
        connection.execute("UPDATE run SET status = 'failed', finished_us = 7 WHERE id = 2")
    import_path(store, other.database)
    assert rows("SELECT finished_us FROM run WHERE status = 'failed'") == [(7,)]


def test_the_store_itself_is_no_source(store: Store) -> None:
    with pytest.raises(BadUsage, match="this store itself"):
        import_path(store, store.database)


def test_a_database_of_nobody_or_of_the_future_is_refused(
    store: Store, other: Store, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.db"
    with closing(sqlite3.connect(stranger)) as connection:
        connection.execute("CREATE TABLE cats(name)")
    with pytest.raises(DatabaseDamaged):
        import_path(store, stranger)
    with closing(sqlite3.connect(other.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(DatabaseNewer):
        import_path(store, other.database)


def test_rows_that_break_the_schema_change_nothing(store: Store, other: Store, rows: Rows) -> None:
    with closing(sqlite3.connect(other.database)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute("UPDATE capture SET receipt = 'no JSON' WHERE id = 2")
        connection.commit()
    with pytest.raises(DatasetRefused, match="break the schema"):
        import_path(store, other.database)
    assert rows("SELECT count(*) FROM capture") == [(0,)]


def test_every_table_of_the_schema_has_a_key_and_comes_after_its_parents(store: Store) -> None:
    with closing(store.read()) as connection:
        tables = read_tables(connection)
    seen: set[str] = set()
    for table in tables:
        assert table.key, table.name
        assert set(table.parents.values()) - {table.name} <= seen, table.name
        seen.add(table.name)
    assert {"run", "capture", "replay", "measurement", "timing_sample", "fc2_result"} <= seen
