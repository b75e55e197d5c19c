"""A copy of a store's rows, without its bytes: the `rows` export, and what a trace export carries.

The copy is compacted twice: once out of the live database, and again after rows were taken out of
it, so that nothing deleted lingers in free pages.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kclab.core.errors import BadUsage, EnvironmentLacking, NothingMatched
from kclab.dataset.redaction import redact
from kclab.db.connection import translated
from kclab.db.kept_files import mark_elsewhere
from kclab.db.queries.runs import find_run


@dataclass(frozen=True, slots=True)
class Selection:
    """Which captures an export takes; all of them unless narrowed."""

    definitions: Sequence[str] = ()
    """Globs on definition names."""
    run: str | None = None
    """A run's uuid, its beginning, or `last`."""
    since: int | None = None
    """Captured at or after, microseconds UTC."""

    @property
    def narrows(self) -> bool:
        """Whether anything is left out."""
        return bool(self.definitions or self.run or self.since)


def copy_rows(
    database: Path,
    target: Path,
    selection: Selection,
    *,
    redacted: bool,
    without_run: str | None = None,
) -> None:
    """Write the selected rows of `database` to the new file `target`.

    Raises NothingMatched when the selection leaves no workload, BadUsage for an unknown run.
    """
    rough = target.with_name(f"{target.name}.rough")
    with translated(database), closing(sqlite3.connect(database)) as live:
        _copy_whole(live, rough)
    try:
        with closing(sqlite3.connect(rough, isolation_level=None)) as copy:
            copy.row_factory = sqlite3.Row
            copy.execute("PRAGMA foreign_keys=ON")
            copy.execute("BEGIN")
            if without_run is not None:
                copy.execute("DELETE FROM run WHERE uuid = ?", (without_run,))
            if selection.narrows:
                _narrow(copy, selection)
            if redacted:
                redact(copy)
            mark_elsewhere(copy)  # no format has a place for images
            copy.execute("COMMIT")
            if copy.execute("SELECT 1 FROM workload LIMIT 1").fetchone() is None:
                raise NothingMatched("no workload matches, so there is nothing to export.")
            broken = copy.execute("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise BadUsage(f"{database}: table {broken[0][0]} has rows without their parent.")
            copy.execute("VACUUM INTO ?", (str(target),))
    finally:
        rough.unlink(missing_ok=True)


def _copy_whole(live: sqlite3.Connection, rough: Path) -> None:
    try:
        live.execute("VACUUM INTO ?", (str(rough),))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN):
            raise
        raise EnvironmentLacking(f"{rough.parent} cannot be written to: {error}.") from error


def mark_absent(database: Path, hint: str, kept: Sequence[str] = ()) -> None:
    """Say of every blob but `kept` that its bytes are elsewhere, and how to get them."""
    with closing(sqlite3.connect(database, isolation_level=None)) as copy:
        copy.execute(
            "UPDATE blob SET present = 0, hint = coalesce(hint, ?), verified_us = NULL"
            " WHERE sha256 NOT IN (SELECT value FROM json_each(?))",
            (hint, json.dumps(list(kept))),
        )


def _narrow(copy: sqlite3.Connection, selection: Selection) -> None:
    where, values = ["1"], []
    if selection.run is not None:
        where.append("c.run_id = ?")
        values.append(int(find_run(copy, selection.run)["id"]))
    if selection.since is not None:
        where.append("c.captured_us >= ?")
        values.append(selection.since)
    captures = f"SELECT c.id, c.workload_id FROM capture c WHERE {' AND '.join(where)}"
    copy.execute(f"CREATE TEMP TABLE kept_capture AS {captures}", values)
    copy.execute("CREATE TEMP TABLE kept_workload(id INTEGER PRIMARY KEY)")
    copy.execute("INSERT OR IGNORE INTO kept_workload SELECT workload_id FROM kept_capture")
    if selection.run is None and selection.since is None:
        copy.execute("INSERT OR IGNORE INTO kept_workload SELECT id FROM workload")
    if selection.definitions:
        globs = " OR ".join("d.name GLOB ?" for _ in selection.definitions)
        copy.execute(
            "DELETE FROM kept_workload WHERE id NOT IN (SELECT w.id FROM workload w"
            f" JOIN definition d ON d.id = w.definition_id WHERE {globs})",
            tuple(selection.definitions),
        )
    _delete_unkept(copy)


def _delete_unkept(copy: sqlite3.Connection) -> None:
    for statement in (
        "DELETE FROM replay WHERE (capture_id IS NOT NULL AND capture_id NOT IN"
        " (SELECT id FROM kept_capture)) OR (workload_id IS NOT NULL AND workload_id NOT IN"
        " (SELECT id FROM kept_workload)) OR (capture_id IS NULL AND workload_id IS NULL)",
        "DELETE FROM capture WHERE id NOT IN (SELECT id FROM kept_capture)"
        " OR workload_id NOT IN (SELECT id FROM kept_workload)",
        "DELETE FROM foreign_record WHERE definition IS NULL OR definition NOT IN"
        " (SELECT d.name FROM workload w JOIN definition d ON d.id = w.definition_id"
        " WHERE w.id IN (SELECT id FROM kept_workload))",
        # A foreign record hangs on the run that brought it, so that run stays with it.
        "UPDATE run SET parent_id = NULL WHERE parent_id NOT IN (SELECT run_id FROM capture UNION"
        " SELECT run_id FROM replay UNION SELECT run_id FROM foreign_record)",
        "DELETE FROM run WHERE id NOT IN (SELECT run_id FROM capture UNION SELECT run_id FROM"
        " replay UNION SELECT run_id FROM foreign_record)",
        "DELETE FROM workload WHERE id NOT IN (SELECT id FROM kept_workload)",
    ):
        copy.execute(statement)
    for table, key in (("definition", "id"), ("environment", "id"), ("blob", "sha256")):
        _delete_unreferenced(copy, table, key)


def _delete_unreferenced(copy: sqlite3.Connection, table: str, key: str) -> None:
    """Rows of `table` that no foreign key of any table names."""
    links = copy.execute(
        'SELECT m.name, f."from" FROM sqlite_master m, pragma_foreign_key_list(m.name) f'
        " WHERE m.type = 'table' AND f.\"table\" = ?",
        (table,),
    ).fetchall()
    used = " UNION ".join(
        f"SELECT {column} FROM {name} WHERE {column} IS NOT NULL" for name, column in links
    )
    copy.execute(f"DELETE FROM {table} WHERE {key} NOT IN ({used})")
