"""Creating and upgrading: once, wholly or not at all, and without losing a child row."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kclab.core.errors import DatabaseBusy, DatabaseDamaged, DatabaseProblem
from kclab.db import connection as connections
from kclab.db import migrate
from kclab.db.connection import connect_read, connect_write, open_database, schema_revision
from kclab.db.migrate import back_up, ensure_current, migrations_folder
from kclab.db.revision import KNOWN_REVISIONS, SCHEMA_REVISION
from kclab.db.store import Store, open_for_writing
from tests.db.filled import fill

NEXT = "9999"
HEAD = f"""
from alembic import op
import sqlalchemy as sa
revision, down_revision, branch_labels, depends_on = "{NEXT}", "{SCHEMA_REVISION}", None, None
def upgrade():
"""
RECREATE_RUN = """
    with op.batch_alter_table("run", recreate="always") as table:
        table.add_column(sa.Column("mood", sa.Text(), nullable=True))
"""


@pytest.fixture
def add_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a throw-away migration on top of the real ones."""

    def add(body: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / f"{NEXT}_throw_away.py").write_text(HEAD + body, encoding="utf-8")
        monkeypatch.setattr(migrate, "migrations_folder", lambda: folder)
        monkeypatch.setattr(migrate, "SCHEMA_REVISION", NEXT)
        monkeypatch.setattr(connections, "SCHEMA_REVISION", NEXT)
        monkeypatch.setattr(connections, "KNOWN_REVISIONS", (*KNOWN_REVISIONS, NEXT))

    return add


def count(path: Path, table: str) -> int:
    with closing(open_database(path, "ro")) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def columns(path: Path, table: str) -> list[str]:
    with closing(open_database(path, "ro")) as connection:
        return [r[1] for r in connection.execute(f"PRAGMA table_info({table})")]


def test_known_revisions_are_the_migrations() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(migrations_folder()))
    assert tuple(r.revision for r in reversed(list(script.walk_revisions()))) == KNOWN_REVISIONS
    assert script.get_heads() == [SCHEMA_REVISION]


def test_models_and_migrations_agree(empty_database: Path, tmp_path: Path) -> None:
    """What `alembic check` says: no difference left to write a migration for."""
    path = Path(shutil.copyfile(empty_database, tmp_path / "kclab.db"))
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-x", f"db={path}", "check"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert "No new upgrade operations detected" in done.stdout + done.stderr
    assert done.returncode == 0


def test_every_table_is_strict_and_integers_stay_integers(store: Store) -> None:
    with closing(store.write()) as connection:
        tables = connection.execute(
            "SELECT name, strict FROM pragma_table_list WHERE schema = 'main'"
            " AND type = 'table' AND name NOT LIKE 'sqlite_%' AND name != 'alembic_version'"
        ).fetchall()
        assert len(tables) > 20
        assert [t["name"] for t in tables if not t["strict"]] == []


def test_strict_and_keyed_tables_survive_being_recreated(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    add_migration(RECREATE_RUN + RECREATE_RUN.replace('"run"', '"run_tag"'))
    ensure_current(store.database)
    with closing(connect_read(store.database)) as connection:
        found = connection.execute(
            "SELECT name, strict, wr FROM pragma_table_list WHERE name IN ('run', 'run_tag')"
        ).fetchall()
    assert {tuple(row) for row in found} == {("run", 1, 0), ("run_tag", 1, 1)}


def test_child_rows_survive_recreating_their_parent(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    fill(store)
    children = ["run_tag", "error", "capture", "replay", "replay_output", "timing_sample"]
    before = {table: count(store.database, table) for table in children}
    assert all(before.values())
    add_migration(RECREATE_RUN)
    ensure_current(store.database)
    assert {table: count(store.database, table) for table in children} == before
    assert "mood" in columns(store.database, "run")


@pytest.mark.parametrize(
    "fault",
    ['    raise RuntimeError("broken migration")', '    op.execute("SELECT no_such_column")'],
    ids=["exception", "statement"],
)
def test_a_failed_migration_leaves_the_database_as_it_was(
    store: Store, add_migration: Callable[[str], None], fault: str
) -> None:
    fill(store)
    before = columns(store.database, "run"), count(store.database, "error")
    add_migration(RECREATE_RUN + '    op.execute("DELETE FROM error")\n' + fault)
    with pytest.raises(Exception, match=r"broken migration|no_such_column"):
        ensure_current(store.database)
    assert (columns(store.database, "run"), count(store.database, "error")) == before
    assert schema_revision(store.database) == SCHEMA_REVISION


def test_a_database_unlike_its_revision_is_refused_in_one_sentence_and_leaves_no_copy(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    add_migration('    op.drop_index("ix_not_there", table_name="run")\n')
    sentence = r"cannot be upgraded: .*\(no such index: ix_not_there\); nothing was changed"
    for _ in range(2):
        with pytest.raises(DatabaseDamaged, match=sentence):
            ensure_current(store.database)
    assert not list(store.database.parent.glob("*.bak-*"))
    assert schema_revision(store.database) == SCHEMA_REVISION


def test_a_migration_that_orphans_rows_is_refused(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    fill(store)
    add_migration('    op.execute("DELETE FROM environment")\n')
    with pytest.raises(DatabaseProblem, match="nothing was changed"):
        ensure_current(store.database)
    assert count(store.database, "environment") == 1


def test_a_killed_migration_leaves_the_database_as_it_was(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    fill(store)
    reader, writer = os.pipe()
    add_migration(RECREATE_RUN + f"    import os, time; os.write({writer}, b'.'); time.sleep(60)")
    child = multiprocessing.get_context("fork").Process(
        target=ensure_current, args=(store.database,)
    )
    child.start()
    os.read(reader, 1)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    os.close(reader), os.close(writer)
    assert "mood" not in columns(store.database, "run")
    assert schema_revision(store.database) == SCHEMA_REVISION


def _create(path: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        ensure_current(path)
        with closing(connect_write(path)) as connection:
            connection.execute("SELECT * FROM run")
        results.put("ok")  # type: ignore[attr-defined]
    except BaseException as error:
        results.put(repr(error))  # type: ignore[attr-defined]


@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_meet_at_the_first_use_create_one_database(
    tmp_path: Path, attempt: int
) -> None:
    path = tmp_path / "kclab.db"
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_create, args=(path, barrier, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == ["ok"] * 4
    for worker in workers:
        worker.join()
    assert schema_revision(path) == SCHEMA_REVISION
    assert list(tmp_path.glob("*.bak*")) == []


def test_processes_that_meet_at_an_upgrade_make_one_backup(
    store: Store, add_migration: Callable[[str], None]
) -> None:
    fill(store)
    add_migration(RECREATE_RUN)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [
        context.Process(target=_create, args=(store.database, barrier, results)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == ["ok"] * 3
    backups = list(store.database.parent.glob("kclab.db.bak*"))
    assert [schema_revision(path) for path in backups] == [SCHEMA_REVISION]


def test_a_new_database_is_in_wal_mode(empty_database: Path) -> None:
    with closing(connect_read(empty_database)) as connection:
        assert connections.journal_mode(connection) == "wal"


@pytest.mark.parametrize("opened", [ensure_current, lambda path: open_for_writing(Store.at(path))])
def test_a_copy_gets_its_wal_before_it_is_written_to(
    store: Store, tmp_path: Path, opened: Callable[[Path], Path | None]
) -> None:
    copy = back_up(store.database, tmp_path / "copy.db")
    assert opened(copy) is None
    with closing(connect_read(copy)) as connection:
        assert connections.journal_mode(connection) == "wal"


def test_a_file_system_without_wal_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The dot-file VFS has no shared memory, as network file systems have none."""
    real = connections.database_uri
    monkeypatch.setattr(
        connections, "database_uri", lambda path, mode: f"{real(path, mode)}&vfs=unix-dotfile"
    )
    path = tmp_path / "kclab.db"
    with caplog.at_level(logging.WARNING):
        ensure_current(path)
    assert f"{path}: journal mode delete instead of WAL" in caplog.text
    with closing(connect_write(path)) as connection, connections.writing(connection):
        connection.execute("DELETE FROM run")


def test_a_database_in_a_missing_folder_is_made_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "kclab.db"
    ensure_current(path)
    assert schema_revision(path) == SCHEMA_REVISION


@pytest.mark.parametrize("name", ["with space.db", "question?.db", "per%cent.db", "hash#.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    ensure_current(path)
    with closing(connect_write(path)) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 0
    assert {p.name.removesuffix("-shm").removesuffix("-wal") for p in tmp_path.iterdir()} == {name}


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseProblem, match="cannot make this folder"):
        ensure_current(tmp_path / "file" / "kclab.db")


def test_an_upgrade_behind_a_long_writer_says_busy(
    store: Store, add_migration: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(RECREATE_RUN)
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "100")
    with closing(open_database(store.database, "rw")) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match="another process has held the write lock"):
            ensure_current(store.database)
        holder.execute("ROLLBACK")


def test_a_backup_of_a_database_in_use_holds_what_was_committed(
    store: Store, tmp_path: Path
) -> None:
    fill(store)
    with closing(connect_write(store.database)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM error")
        copy = back_up(store.database, tmp_path / "copies" / "copy.db")
        writer.execute("ROLLBACK")
    assert count(copy, "error") == count(store.database, "error") == 1


def test_a_failed_backup_leaves_no_half_copy(store: Store, tmp_path: Path) -> None:
    store.database.write_bytes(b"this is not a database file\n" * 300)
    with pytest.raises(DatabaseProblem):
        back_up(store.database, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_checking_a_current_database_loads_no_alembic(store: Store) -> None:
    script = (
        "import sys; from pathlib import Path; from kclab.db.migrate import ensure_current;"
        "ensure_current(Path(sys.argv[1])); sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(store.database)], check=True)
