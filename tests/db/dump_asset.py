"""`python -m tests.db.dump_asset FILE`: a database of one old revision as SQL text."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from kclab.db.connection import open_database
from kclab.db.migrate import ensure_current
from kclab.db.store import Store
from tests.db.filled import fill


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.at(Path(folder) / "kclab.db")
        ensure_current(store.database)
        fill(store)
        connection = open_database(store.database, "rw")
        connection.row_factory = None
        target.write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
        connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
