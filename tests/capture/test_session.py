"""What a process asks before it captures for a plan."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from kclab.capture.session import current_session, start, stop
from kclab.core.errors import DatabaseNewer, DatabaseOutdated
from kclab.db.revision import SCHEMA_REVISION
from kclab.db.store import Store
from tests.capture.recording import recording


@pytest.mark.parametrize(
    ("revision", "error"), [("0003", DatabaseOutdated), ("9999", DatabaseNewer)]
)
def test_another_kclab_than_the_plans_is_told_before_anything_is_captured(
    store: Store, revision: str, error: type[Exception]
) -> None:
    with recording(store) as session:
        with closing(sqlite3.connect(store.database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        try:
            with pytest.raises(error, match=f"has schema {revision}"):
                start(session.plan)
            assert current_session() is None
        finally:
            stop()
            with closing(sqlite3.connect(store.database)) as connection, connection:
                connection.execute("UPDATE alembic_version SET version_num = ?", (SCHEMA_REVISION,))
