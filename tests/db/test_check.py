"""`kclab db check` finds every kind of fault, names it, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kclab.core.errors import DatabaseProblem
from kclab.db.check import Fault, check
from kclab.db.connection import open_database, writing
from kclab.db.rows import BlobRow, add_blobs
from kclab.db.runs import run
from kclab.db.store import Store
from tests.conftest import Cli
from tests.db.filled import add_bytes, fill


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store, examples=3)
    return store


def first_blob(store: Store) -> Path:
    return store.blobs.path(min(store.blobs.present()))


def kinds(store: Store) -> list[str]:
    return [fault.kind for fault in check(store).faults]


def test_a_sound_store_has_no_faults(filled: Store) -> None:
    report = check(filled)
    assert report.faults == []
    assert (report.blobs, report.nbytes) == (6, 2 * 4 * (1 + 2 + 3))
    assert report.journal_mode == "wal"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x7f"), "its content has digest"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "of"),
        (lambda p: p.write_bytes(b""), "too short"),
        (lambda p: (p.unlink(), p.mkdir()), "is a folder"),
        (lambda p: (p.rename(p.with_suffix(".x")), p.symlink_to("x")), "symbolic link"),
    ],
    ids=["one byte", "cut", "empty", "folder", "link"],
)
def test_a_damaged_blob_is_named(filled: Store, damage: object, words: str) -> None:
    path = first_blob(filled)
    damage(path)  # type: ignore[operator]
    (fault,) = check(filled).of("damaged")
    assert path.parent.name + path.stem == fault.name
    assert words in fault.detail and str(path) in fault.detail


def test_a_row_without_its_file_is_missing(filled: Store) -> None:
    path = first_blob(filled)
    path.unlink()
    report = check(filled)
    assert [fault.name for fault in report.of("missing")] == [path.parent.name + path.stem]
    assert report.blobs_damaged


def test_bytes_that_are_elsewhere_are_absent_and_no_damage(filled: Store) -> None:
    absent = BlobRow("ab" * 32, "float32", (2,), 8, present=False, hint="git lfs pull")
    with closing(filled.write()) as connection, writing(connection):
        add_blobs(connection, [absent])
    report = check(filled)
    assert report.faults == [Fault("absent", "ab" * 32, "git lfs pull")]
    assert not report.blobs_damaged


def test_files_that_nothing_uses_are_listed(filled: Store) -> None:
    stray = add_bytes(filled.blobs, b"abcd")
    temporary = filled.blobs.batch().temporary()
    temporary.write_bytes(b"half")
    report = check(filled)
    assert [f.name for f in report.of("unreferenced")] == [stray.sha256]
    assert [f.name for f in report.of("leftover")] == [str(temporary)]
    assert not report.blobs_damaged


def test_an_index_that_lost_its_rows_is_damage_of_the_database(filled: Store) -> None:
    with closing(open_database(filled.database, "rw")) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'ix_run_started'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(filled.database.read_bytes())
    content[(page - 1) * size + 3 : (page - 1) * size + 5] = b"\0\0"  # an index page without cells
    filled.database.write_bytes(content)
    report = check(filled)
    assert report.database_damaged
    assert "ix_run_started" in str(report.faults)


def test_a_page_of_garbage_is_told_in_a_sentence(filled: Store) -> None:
    content = bytearray(filled.database.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    filled.database.write_bytes(content)
    with pytest.raises(DatabaseProblem, match="malformed"):
        check(filled)


def test_a_row_without_its_parent_is_named(filled: Store) -> None:
    with closing(sqlite3.connect(filled.database, isolation_level=None)) as connection:
        connection.execute("INSERT INTO run_tag VALUES (77, 'orphan')")
    report = check(filled)
    assert report.of("foreign_key") == [
        Fault("foreign_key", "run_tag", "row None has no parent in run")
    ]


def test_progress_counts_every_byte_once(filled: Store) -> None:
    seen: list[tuple[int, int]] = []
    check(filled, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (48, 48)
    assert seen == sorted(seen)


def test_a_blob_that_is_removed_while_it_is_checked_is_no_fault(filled: Store) -> None:
    """Somebody cleans while we hash: the row goes with its file."""
    path = first_blob(filled)

    def remove(_done: int, _total: int) -> None:
        digest = path.parent.name + path.stem
        with closing(sqlite3.connect(filled.database, isolation_level=None)) as connection:
            connection.execute("DELETE FROM blob WHERE sha256 = ?", (digest,))

    path.unlink()
    assert check(filled, remove).faults == []


def test_checking_changes_no_byte(filled: Store) -> None:
    before = {p: p.read_bytes() for p in filled.database.parent.rglob("*.safetensors")}
    database = filled.database.read_bytes()
    check(filled)
    assert {p: p.read_bytes() for p in filled.database.parent.rglob("*.safetensors")} == before
    assert filled.database.read_bytes() == database


def test_two_thousand_small_blobs_are_checked(store: Store) -> None:
    with run(store, "import", {}) as active:
        batch = store.blobs.batch()
        rows = [
            BlobRow(batch.add("int64", (1,), i.to_bytes(8, "little")), "int64", (1,), 8)
            for i in range(2000)
        ]
        batch.sync()
        with writing(active.connection):
            add_blobs(active.connection, rows)
    assert check(store).blobs == 2000


class TestCommand:
    def test_a_sound_store(self, filled: Store, invoke: Cli) -> None:
        done = invoke("--db", filled.database, "db", "check")
        assert (done.code, done.out) == (0, "")
        assert "6 blobs hashed" in done.err and "\n\n" not in done.err

    def test_a_damaged_blob_ends_with_1(self, filled: Store, invoke: Cli) -> None:
        first_blob(filled).write_bytes(b"")
        done = invoke("--db", filled.database, "db", "check")
        assert done.code == 1
        assert "damaged" in done.out
        assert "import PATH --repair" in done.err

    def test_strangers_are_no_failure(self, filled: Store, invoke: Cli) -> None:
        add_bytes(filled.blobs, b"abcd")
        done = invoke("--db", filled.database, "db", "check")
        assert done.code == 0
        assert "kclab db gc" in done.err

    def test_json_has_every_kind(self, filled: Store, invoke: Cli) -> None:
        first_blob(filled).unlink()
        done = invoke("--db", filled.database, "db", "check", "--format", "json")
        found = json.loads(done.out)
        assert (done.code, found["ok"], found["blobs"]) == (1, False, 6)
        assert len(found["missing"]) == 1 and found["damaged"] == found["leftover"] == []

    def test_a_damaged_database_ends_with_5(self, filled: Store, invoke: Cli) -> None:
        with closing(sqlite3.connect(filled.database, isolation_level=None)) as connection:
            connection.execute("INSERT INTO run_tag VALUES (77, 'orphan')")
        done = invoke("--db", filled.database, "db", "check")
        assert done.code == 5
        assert "is damaged; it was left as it is" in done.err
