"""`kclab db init`, `upgrade`, `backup`, `stats`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from kclab.db.connection import open_database, schema_revision
from kclab.db.revision import SCHEMA_REVISION
from kclab.db.store import Store
from tests.conftest import Cli
from tests.db.filled import fill
from tests.db.test_old_databases import ASSETS


def old_database(path: Path) -> None:
    with closing(open_database(path, "rwc")) as connection:
        connection.executescript((ASSETS / "0001.sql").read_text(encoding="utf-8"))


LOOKING = (
    "runs list",
    "runs show last",
    "runs compare last last",
    "runs diff last last",
    "workloads list",
    "workloads show 1",
    "captures list",
    "captures show 1",
    "captures diff last last",
    "definitions list",
    "definitions show double",
    "fc2 best",
    "fc2 pareto",
    "fc2 candidates last",
    "fc2 history 0:0:0:1:0:0:0:0:0",
    "fc2 explain 0:0:0:1:0:0:0:0:0",
    "fc2 reproduce 1",
    "fc2 compare last last",
    "fc2 export last",
    "report",
    "ui",
    "export out",
    "db check",
    "db backup",
    "db stats",
    "db gc",
)
"""Every command that only reads the database."""


@pytest.mark.parametrize("command", LOOKING)
def test_looking_at_an_older_database_says_what_to_do_and_changes_nothing(
    invoke: Cli, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "old" / "kclab.db"
    path.parent.mkdir()
    old_database(path)
    before = path.read_bytes()
    done = invoke("--db", path, *command.split())
    assert (done.code, done.out) == (5, "")
    assert f"{path} has schema 0001" in done.err and "run `kclab db upgrade" in done.err
    assert len(done.err.splitlines()) == 1
    assert [p for p in path.parent.iterdir() if "-" not in p.name] == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", LOOKING)
def test_looking_at_an_upgraded_database_needs_no_more(
    invoke: Cli, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "old" / "kclab.db"
    path.parent.mkdir()
    old_database(path)
    assert invoke("--db", path, "db", "upgrade").code == 0
    done = invoke("--db", path, *command.split())
    assert done.code != 5, done.err


class TestInit:
    def test_it_makes_one(self, invoke: Cli, tmp_path: Path) -> None:
        done = invoke("db", "init")
        assert (done.code, done.out) == (0, "")
        assert schema_revision(tmp_path / "kclab.db") == SCHEMA_REVISION

    def test_one_that_is_there_stays(self, store: Store, invoke: Cli) -> None:
        fill(store)
        before = store.database.read_bytes()
        done = invoke("--db", store.database, "db", "init")
        assert done.code == 0 and "is there" in done.err
        assert store.database.read_bytes() == before

    def test_force_puts_the_old_one_aside(self, store: Store, invoke: Cli) -> None:
        fill(store)
        done = invoke("--db", store.database, "db", "init", "--force")
        kept = store.database.with_name("kclab.db.old-1")
        assert done.code == 0 and str(kept) in done.err
        with closing(open_database(kept, "ro")) as connection:
            assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 1
        with closing(store.read()) as connection:
            assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 0

    def test_force_keeps_what_is_only_in_the_wal(self, store: Store, invoke: Cli) -> None:
        with closing(store.write()) as connection:
            connection.execute("INSERT INTO environment(sha256,os,python,facts) VALUES(1,2,3,'{}')")
            invoke("--db", store.database, "db", "init", "--force")
        kept = store.database.with_name("kclab.db.old-1")
        with closing(open_database(kept, "rw")) as connection:
            assert connection.execute("SELECT count(*) FROM environment").fetchone()[0] == 1

    def test_force_puts_a_file_that_is_no_database_aside(self, store: Store, invoke: Cli) -> None:
        store.database.write_text("a letter")
        assert invoke("--db", store.database, "db", "init").code == 5
        assert store.database.read_text() == "a letter"
        assert invoke("--db", store.database, "db", "init", "--force").code == 0
        assert store.database.with_name("kclab.db.old-1").read_text() == "a letter"


class TestUpgrade:
    def test_an_old_one_is_upgraded_after_a_backup(self, invoke: Cli, tmp_path: Path) -> None:
        old_database(tmp_path / "kclab.db")
        assert invoke("db", "stats").code == 5
        done = invoke("db", "upgrade")
        assert done.code == 0
        assert "kclab.db.bak-0001" in done.err and f"from 0001 to {SCHEMA_REVISION}" in done.err
        assert invoke("db", "stats").code == 0

    def test_a_current_one_needs_nothing(self, store: Store, invoke: Cli) -> None:
        done = invoke("--db", store.database, "db", "upgrade")
        assert done.code == 0 and "nothing to do" in done.err

    def test_a_missing_one_is_not_made(self, invoke: Cli, tmp_path: Path) -> None:
        done = invoke("db", "upgrade")
        assert done.code == 5 and "no such database" in done.err
        assert list(tmp_path.iterdir()) == []

    def test_a_newer_one_is_left_alone(self, store: Store, invoke: Cli) -> None:
        with closing(open_database(store.database, "rw")) as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
        before = store.database.read_bytes()
        for words in (["upgrade"], ["init"], ["check"], ["stats"], ["gc", "--yes"], ["backup"]):
            done = invoke("--db", store.database, "db", *words)
            assert done.code == 5, words
            assert done.err.count("\n") == 1 and "use the newer kclab" in done.err
        assert store.database.read_bytes() == before


class TestBackup:
    def test_it_lies_beside_the_database(self, store: Store, invoke: Cli) -> None:
        fill(store)
        done = invoke("--db", store.database, "db", "backup")
        copy = store.database.with_name("kclab.db.bak")
        assert done.code == 0 and str(copy) in done.err
        again = invoke("--db", copy, "db", "stats", "--format", "json")
        assert json.loads(again.out)["tables"]["run"] == 1

    def test_a_name_that_is_taken_gets_a_number(
        self, store: Store, invoke: Cli, tmp_path: Path
    ) -> None:
        (tmp_path / "copy.db").write_text("precious")
        done = invoke("--db", store.database, "db", "backup", tmp_path / "copy.db")
        assert done.code == 0 and "copy.db.1" in done.err
        assert (tmp_path / "copy.db").read_text() == "precious"

    @pytest.mark.parametrize("destination", ["file/copy.db", "."])
    def test_a_place_that_cannot_be_written_is_told(
        self, store: Store, invoke: Cli, tmp_path: Path, destination: str
    ) -> None:
        (tmp_path / "file").write_text("")
        done = invoke("--db", store.database, "db", "backup", tmp_path / destination)
        assert done.code in (0, 5)
        assert "Traceback" not in done.err


class TestStats:
    def test_it_counts_rows_bytes_and_sharing(self, store: Store, invoke: Cli) -> None:
        fill(store, examples=2)
        with closing(store.write()) as connection:
            connection.execute(
                "INSERT INTO capture_output SELECT capture_id, 1, 'again', blob_sha256"
                " FROM capture_output"
            )
        found = json.loads(invoke("--db", store.database, "db", "stats", "-f", "json").out)
        assert found["tables"]["capture"] == 2
        assert (found["blobs"], found["blob_bytes"]) == (4, 24)
        assert found["used_bytes"] == 36
        assert found["sharing"] == pytest.approx(1.5)
        assert found["journal_mode"] == "wal" and found["database_bytes"] > 4096

    def test_a_person_reads_a_table(self, store: Store, invoke: Cli) -> None:
        fill(store)
        done = invoke("--db", store.database, "db", "stats")
        assert done.code == 0
        assert "capture_output" in done.out and "each byte is used" in done.out

    def test_an_empty_store_has_no_ratio(self, store: Store, invoke: Cli) -> None:
        found = json.loads(invoke("--db", store.database, "db", "stats", "-f", "json").out)
        assert found["sharing"] is None and found["tables"] == {}


class TestLongLists:
    @pytest.mark.parametrize("words", [["check"], ["gc", "--older-than", "0"]])
    def test_a_person_sees_some_of_many_strays_and_how_many_there_are(
        self, store: Store, invoke: Cli, words: list[str]
    ) -> None:
        for number in range(5):
            path = store.blobs.path(f"{number:064x}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"stray")
        done = invoke("--db", store.database, "db", *words, "-n", "2")
        assert done.code == 0
        assert done.out.count("unreferenced") == 2
        assert "2 of 5 " in done.err and "-n shows more" in done.err
        whole = invoke("--db", store.database, "db", *words, "-n", "2", "-f", "csv")
        assert len(whole.out.splitlines()) == 1 + 5
        assert "-n shows more" not in whole.err
