"""Which run an FC2 command means when it is asked about the last one."""

from __future__ import annotations

import sqlite3

from kclab.core.errors import NothingMatched
from kclab.db.queries.runs import find_run

TRIED = "EXISTS (SELECT 1 FROM fc2_candidate f WHERE f.run_id = r.id)"

MEASURED = "EXISTS (SELECT 1 FROM fc2_result f WHERE f.run_id = r.id)"


def run_that_tried(connection: sqlite3.Connection, text: str, *, measured: bool = False) -> str:
    """The uuid of the run that `text` names; for `last`, of the newest that tried a config.

    An import or a run above several sweeps may be newer, and tries none itself. With `measured` a
    run that measured one without searching counts, too. Raises NothingMatched where the run named,
    or every run, tried nothing.
    """
    wanted = f"({TRIED} OR {MEASURED})" if measured else TRIED
    named = None if text == "last" else find_run(connection, text)
    row = connection.execute(
        f"SELECT r.uuid FROM run r WHERE (:id IS NULL OR r.id = :id) AND {wanted}"
        " ORDER BY r.started_us DESC, r.id DESC LIMIT 1",
        {"id": None if named is None else named["id"]},
    ).fetchone()
    if row is not None:
        return str(row[0])
    if named is None:
        raise NothingMatched("no run tried a config yet; kclab fc2 sweep does.")
    raise NothingMatched(f"run {named['uuid'][:13]} ({named['command']}) tried no config.")
