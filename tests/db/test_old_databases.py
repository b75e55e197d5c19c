"""Databases that earlier releases wrote are upgraded whole, row for row."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from kclab.core.errors import DatabaseOutdated
from kclab.db.connection import connect_read, open_database, schema_revision
from kclab.db.migrate import ensure_current
from kclab.db.revision import KNOWN_REVISIONS, SCHEMA_REVISION

ASSETS = Path(__file__).parent / "assets"


@pytest.fixture(params=sorted(path.stem for path in ASSETS.glob("*.sql")))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database of an old revision, in WAL mode as it was."""
    path = tmp_path / "kclab.db"
    with closing(open_database(path, "rwc")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript((ASSETS / f"{request.param}.sql").read_text(encoding="utf-8"))
    return path


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(open_database(path, "ro")) as connection:
        connection.row_factory = None
        names = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE rootpage")]
        tables = [n for n in names if not n.startswith(("sqlite_", "ix_", "alembic"))]
        return {name: sorted(connection.execute(f'SELECT * FROM "{name}"')) for name in tables}


def test_every_old_revision_has_its_fixture() -> None:
    assert sorted(path.stem for path in ASSETS.glob("*.sql")) == sorted(KNOWN_REVISIONS[:-1])


def test_upgrading_keeps_every_row(old: Path) -> None:
    before = rows(old)
    assert any(before.values())
    ensure_current(old)
    after = rows(old)
    assert {name: len(found) for name, found in before.items()} == {
        name: len(after[name]) for name in before
    }
    assert schema_revision(old) == SCHEMA_REVISION
    with closing(connect_read(old)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_upgrading_leaves_a_copy_of_the_database_as_it_was(old: Path) -> None:
    before, revision = rows(old), schema_revision(old)
    backup = ensure_current(old)
    assert backup == old.with_name(f"kclab.db.bak-{revision}")
    assert backup is not None
    assert rows(backup) == before
    assert schema_revision(backup) == revision


def test_a_second_upgrade_does_nothing(old: Path) -> None:
    ensure_current(old)
    assert ensure_current(old) is None
    assert len(list(old.parent.glob("kclab.db.bak*"))) == 1


def test_a_backup_never_replaces_an_older_one(old: Path) -> None:
    taken = old.with_name(f"kclab.db.bak-{schema_revision(old)}")
    taken.write_text("something precious")
    assert ensure_current(old) == taken.with_name(f"{taken.name}.1")
    assert taken.read_text() == "something precious"


def test_looking_at_an_old_database_asks_for_the_upgrade_and_changes_nothing(old: Path) -> None:
    before = hashlib.sha256(old.read_bytes()).hexdigest()
    with pytest.raises(DatabaseOutdated, match=f"run `kclab db upgrade --db {old}`"):
        connect_read(old)
    assert hashlib.sha256(old.read_bytes()).hexdigest() == before
