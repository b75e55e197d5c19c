"""Every way a database can be unusable is one sentence, and leaves the file as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from kclab.core.errors import (
    BadUsage,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseMissing,
    DatabaseNewer,
    DatabaseOutdated,
    DatabaseProblem,
)
from kclab.db.connection import (
    connect_read,
    connect_write,
    explain,
    journal_mode,
    open_database,
    writing,
)
from kclab.db.session import session
from kclab.db.store import Store, open_for_writing
from tests.db.filled import fill


def corrupt(path: Path) -> None:
    path.write_bytes(b"this is not a database file\n" * 300)


def newer(path: Path) -> None:
    with closing(open_database(path, "rw")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
        connection.execute("CREATE TABLE of_the_future(x)")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(open_database(path, "rwc")) as connection:
        connection.execute("CREATE TABLE notes(x)")


def foreign_alembic(path: Path) -> None:
    """Another project's, whose own first migration has the same name as ours."""
    foreign(path)
    with closing(open_database(path, "rw")) as connection:
        connection.execute("CREATE TABLE alembic_version(version_num)")
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def gone(path: Path) -> None:
    path.unlink()


def versionless(path: Path) -> None:
    with closing(open_database(path, "rw")) as connection:
        connection.execute("DELETE FROM alembic_version")


FAULTS: list[tuple[Callable[[Path], None], type[DatabaseProblem], str]] = [
    (corrupt, DatabaseDamaged, "file is not a database"),
    (newer, DatabaseNewer, "use the newer kclab"),
    (foreign, DatabaseDamaged, "not one of kclab's"),
    (foreign_alembic, DatabaseDamaged, "not one of kclab's"),
    (cut, DatabaseDamaged, "malformed"),
    (cut_in_the_header, DatabaseDamaged, "malformed"),
    (folder, DatabaseDamaged, "is a folder"),
    (versionless, DatabaseDamaged, "lost its schema revision"),
]
OPENERS = [connect_read, connect_write, lambda path: open_for_writing(Store.at(path))]


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


@pytest.mark.parametrize(
    ("fault", "error", "words"), FAULTS, ids=lambda v: getattr(v, "__name__", v)
)
def test_an_unusable_database_is_told_in_a_sentence_and_left_alone(
    store: Store, fault: Callable[[Path], None], error: type[DatabaseProblem], words: str
) -> None:
    fault(store.database)
    before = content(store.database)
    for opening in OPENERS:
        with pytest.raises(error, match=words) as raised:
            opening(store.database)
        message = str(raised.value)
        assert str(store.database) in message
        assert "\n" not in message and raised.value.exit_code == 5
    assert content(store.database) == before


def test_looking_for_a_missing_database_creates_nothing(tmp_path: Path) -> None:
    for opening in (connect_read, connect_write):
        with pytest.raises(DatabaseMissing, match="--db or KCLAB_DB"):
            opening(tmp_path / "kclab.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_store_is_answered_with_its_database(store: Store) -> None:
    with pytest.raises(DatabaseDamaged, match=f"did you mean {store.database}"):
        connect_read(store.database.parent)


def test_an_empty_file_is_filled_by_a_writer_and_not_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "kclab.db"
    path.touch()
    with pytest.raises(DatabaseOutdated, match="is empty"):
        connect_read(path)
    assert path.stat().st_size == 0
    open_for_writing(Store.at(path))
    with closing(connect_read(path)) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 0


def test_a_reader_cannot_write(store: Store) -> None:
    with (
        closing(connect_read(store.database)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("DELETE FROM run")


def test_a_reader_answers_at_once_beside_a_writer(store: Store) -> None:
    with closing(connect_write(store.database)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with closing(connect_read(store.database)) as reader:
            assert reader.execute("SELECT * FROM run").fetchall() == []
        writer.execute("ROLLBACK")


def test_a_writer_waits_for_another_one(store: Store) -> None:
    def hold(ready: threading.Event) -> None:
        with closing(connect_write(store.database)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            ready.set()
            time.sleep(0.5)
            holder.execute("COMMIT")

    ready = threading.Event()
    thread = threading.Thread(target=hold, args=(ready,))
    thread.start()
    ready.wait()
    with closing(connect_write(store.database)) as writer, writing(writer):
        writer.execute("DELETE FROM run")
    thread.join()


@pytest.mark.parametrize("through", ["sqlite3", "session"])
def test_a_writer_that_waited_too_long_says_busy(
    store: Store, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "50")
    with closing(connect_write(store.database)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match=r"for 0\.05 s; try again") as raised:
            if through == "session":
                with session(store.database) as current:
                    current.connection()
            else:
                with closing(connect_write(store.database)) as writer, writing(writer):
                    pass
        assert str(store.database) in str(raised.value)
        holder.execute("ROLLBACK")


def test_a_timeout_that_is_no_number_is_told(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setenv("KCLAB_BUSY_TIMEOUT_MS", "5s")
    with pytest.raises(BadUsage, match="KCLAB_BUSY_TIMEOUT_MS=5s"):
        connect_read(store.database)


def test_a_block_that_fails_is_rolled_back(store: Store) -> None:
    with closing(connect_write(store.database)) as connection:
        with pytest.raises(KeyError), writing(connection):
            connection.execute(
                "INSERT INTO environment(id,sha256,os,python,facts) VALUES (1,'a','b','c','{}')"
            )
            raise KeyError
        assert connection.execute("SELECT count(*) FROM environment").fetchone()[0] == 0
        assert not connection.in_transaction


def test_a_block_inside_a_block_is_one_transaction(store: Store) -> None:
    insert = "INSERT INTO environment(id,sha256,os,python,facts) VALUES (?,?,'b','c','{}')"
    with closing(connect_write(store.database)) as connection:
        with pytest.raises(KeyError), writing(connection):
            with writing(connection):
                connection.execute(insert, (1, "a"))
            raise KeyError
        assert connection.execute("SELECT count(*) FROM environment").fetchone()[0] == 0


def test_mistakes_of_ours_are_not_called_damage(store: Store) -> None:
    with closing(connect_write(store.database)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="no such table"), writing(connection):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(sqlite3.IntegrityError), writing(connection):
            connection.execute("INSERT INTO run_tag VALUES (1, 'orphan')")
        with pytest.raises(sqlite3.ProgrammingError), writing(connection):
            connection.execute("SELECT ?", (1, 2))


def test_foreign_keys_hold_on_every_writing_connection(store: Store) -> None:
    fill(store)
    with closing(connect_write(store.database)) as connection:
        with writing(connection):
            connection.execute("DELETE FROM capture")
            connection.execute("DELETE FROM run")
        left = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("run_tag", "error", "replay", "replay_output", "timing_sample", "request")
        }
    assert not any(left.values()), left


def test_a_full_disk_is_told_and_nothing_is_written(store: Store) -> None:
    """A file size limit stands for the full disk; SQLite sees the same failed write."""
    code = (
        "import resource, signal, sys; from contextlib import closing; from pathlib import Path\n"
        "from kclab.core.errors import DatabaseProblem\n"
        "from kclab.db.connection import connect_write, writing\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n"
        "with closing(connect_write(Path(sys.argv[1]))) as c:\n"
        "    try:\n"
        "        with writing(c):\n"
        "            for i in range(20_000):\n"
        "                c.execute('INSERT INTO environment(sha256, os, python, facts)'\n"
        "                    ' VALUES (?,?,?,?)', (str(i), 'o' * 100, 'p', '{}'))\n"
        "    except DatabaseProblem as error:\n"
        "        print(error, c.in_transaction)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.database)], capture_output=True, text=True
    )
    assert "nothing was written. False" in done.stdout, done.stderr
    with closing(connect_read(store.database)) as connection:
        assert connection.execute("SELECT count(*) FROM environment").fetchone()[0] == 0
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.fixture
def shared_store(store: Store, tmp_path: Path) -> Store:
    """A store that another user can reach."""
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)
    store.database.chmod(0o644)
    return store


def as_other_user(code: str, path: Path) -> str:
    """Run code as a user who owns nothing here, with the database's path in sys.argv[1]."""
    if os.getuid() != 0:
        code = code.replace("os.setuid(65534)", "None")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd="/"
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


LOOK = """
import os, sys; from pathlib import Path
from kclab.core.errors import DatabaseProblem
from kclab.db.connection import connect_read, connect_write, writing
import encodings.idna
os.setuid(65534)
try:
    print(len(connect_read(Path(sys.argv[1])).execute('SELECT * FROM run').fetchall()))
except DatabaseProblem as error:
    print(error)
"""
WRITE = LOOK.replace(
    "    print(len(connect_read(Path(sys.argv[1])).execute('SELECT * FROM run').fetchall()))\n",
    "    c = connect_write(Path(sys.argv[1]))\n"
    "    with writing(c): c.execute('DELETE FROM run')\n    print('deleted')\n",
)


def test_an_io_error_on_a_full_disk_says_that_it_is_full(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert "the disk is full" not in str(explain(error, store.database))
    status = SimpleNamespace(f_bavail=0)
    monkeypatch.setattr("kclab.db.connection.os.statvfs", lambda _: status)
    assert "the disk is full; free some space" in str(explain(error, store.database))


def test_a_store_in_a_read_only_folder_can_be_looked_at(shared_store: Store) -> None:
    fill(shared_store)
    folder = shared_store.database.parent
    for side in ("-wal", "-shm"):
        shared_store.database.with_name(f"kclab.db{side}").unlink(missing_ok=True)
    shared_store.database.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert as_other_user(LOOK, shared_store.database) == "1"
        assert "nothing was written" in as_other_user(WRITE, shared_store.database)
    finally:
        folder.chmod(0o755)
    assert [path.name for path in folder.glob("kclab.db*")] == ["kclab.db"]


def test_a_read_only_folder_does_not_hide_the_journal(store: Store) -> None:
    with closing(open_database(store.database, "ro&immutable=1")) as connection:
        assert journal_mode(connection) == "wal"


def test_a_read_only_store_with_changes_in_its_wal_is_not_shown_without_them(
    shared_store: Store, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(connect_write(shared_store.database)) as connection:
        with writing(connection):
            connection.execute(
                "INSERT INTO environment(id,sha256,os,python,facts) VALUES (1,'a','b','c','{}')"
            )
        for name in ("kclab.db", "kclab.db-wal"):
            shutil.copyfile(shared_store.database.with_name(name), copy / name)
    copy.chmod(0o555)
    try:
        told = as_other_user(LOOK, copy / "kclab.db")
    finally:
        copy.chmod(0o755)
    assert "its last changes are still in kclab.db-wal" in told


def test_a_database_that_nobody_may_read_is_told(shared_store: Store) -> None:
    shared_store.database.chmod(0o000)
    assert "not readable by this user" in as_other_user(LOOK, shared_store.database)


def test_a_special_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kclab.db")
    with pytest.raises(DatabaseDamaged, match="not a regular file"):
        connect_read(tmp_path / "kclab.db")
    with pytest.raises(DatabaseDamaged, match="not a regular file"):
        open_for_writing(Store.at(tmp_path / "kclab.db"))
