"""Merging one kclab database into another, row by row, whatever tables the schema has.

Ids are local to a file, so every row is looked up by a key that means the same everywhere: the
table's UNIQUE columns, else its primary key (children such as timing samples), else all its
columns. The tables, their order and their keys are read from the schema itself, so a new table
that keeps the conventions of `kclab.db.models` merges without a line here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LOCAL_COLUMNS = ("added_us", "arrived_us", "verified_us", "imported")
"""Columns that say when or how a row came into one file; no part of any key."""
SKIPPED_TABLES = ("alembic_version", "blob")
"""Alembic's own, and blobs, which are merged with their bytes."""


@dataclass(frozen=True, slots=True)
class Table:
    """What the schema says of a table."""

    name: str
    columns: tuple[str, ...]
    parents: Mapping[str, str]
    """Column to the table whose id it holds; links by content need no mapping."""
    key: tuple[str, ...]
    """Columns that name a row in every file."""
    has_id: bool


def read_tables(connection: sqlite3.Connection) -> list[Table]:
    """Every table to merge, parents before children."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    found = {name: _read_table(connection, name) for (name,) in rows if name not in SKIPPED_TABLES}
    ordered: dict[str, Table] = {}
    while found:
        ready = [
            t for t in found.values() if not set(t.parents.values()) & (found.keys() - {t.name})
        ]
        for table in ready:
            ordered[table.name] = found.pop(table.name)
    return list(ordered.values())


def _read_table(connection: sqlite3.Connection, name: str) -> Table:
    info = connection.execute(f"PRAGMA table_info({name})").fetchall()
    columns = tuple(row["name"] for row in info)
    primary = [row["name"] for row in sorted(info, key=lambda row: row["pk"]) if row["pk"]]
    links = connection.execute(f"PRAGMA foreign_key_list({name})").fetchall()
    parents = {row["from"]: row["table"] for row in links if row["to"] == "id"}
    has_id = primary == ["id"]
    key = _unique(connection, name) if has_id else tuple(primary)
    content = tuple(c for c in columns if c != "id" and c not in LOCAL_COLUMNS)
    return Table(name, columns, parents, key or content, has_id)


def _unique(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    for index in connection.execute(f"PRAGMA index_list({table})").fetchall():
        if index["origin"] == "u":
            rows = connection.execute(f"PRAGMA index_info({index['name']})")
            return tuple(row["name"] for row in rows)
    return ()


@dataclass(slots=True)
class Merge:
    """One merge; both connections stay open, the target's in a write transaction."""

    source: sqlite3.Connection
    target: sqlite3.Connection
    skip: Mapping[str, set[int]] = field(default_factory=dict)
    """Table to the source ids that are left out, with whatever hangs on them."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Table to the values that its new rows get here."""
    added: dict[str, int] = field(default_factory=dict)
    """New rows by table."""
    known: dict[str, int] = field(default_factory=dict)
    """Rows by table that were here."""
    _ids: dict[str, dict[int, int]] = field(default_factory=dict)
    _new: dict[str, set[int]] = field(default_factory=dict)
    """Source ids of the rows that are new here."""

    def run(self) -> None:
        """Merge every table."""
        for table in read_tables(self.target):
            before = self.target.total_changes
            if table.has_id:
                self._merge_keyed(table)
            else:
                self._merge_children(table)
            self.added[table.name] = self.target.total_changes - before
        self._link_parents()
        self._finish_runs()

    def _merge_keyed(self, table: Table) -> None:
        ids = self._ids.setdefault(table.name, {})
        new = self._new.setdefault(table.name, set())
        find = f"SELECT id FROM {table.name} WHERE " + " AND ".join(f"{c} IS ?" for c in table.key)
        first = self.target.execute(f"SELECT coalesce(max(id), 0) FROM {table.name}").fetchone()[0]
        rows = []
        for source_id, values in self._mapped(table):
            found = self.target.execute(find, [values[column] for column in table.key]).fetchone()
            if found is not None:
                ids[source_id] = found[0]
                continue
            new.add(source_id)
            ids[source_id] = first + len(new)
            rows.append({**values, **self.overrides.get(table.name, {}), "id": ids[source_id]})
        self.known[table.name] = len(ids) - len(new)
        self._insert(table, rows, "")

    def _merge_children(self, table: Table) -> None:
        """Rows without an id of their own: those of a new parent, or of a run, which may grow."""
        owners = [t for c, t in table.parents.items() if c in table.key]
        if owners and "run" not in owners and not any(self._new.get(t) for t in owners):
            return
        self._insert(table, (values for _, values in self._mapped(table)), "OR IGNORE")

    def _insert(self, table: Table, rows: Iterable[dict[str, Any]], conflict: str) -> None:
        names = ", ".join(table.columns)
        marks = ", ".join("?" * len(table.columns))
        self.target.executemany(
            f"INSERT {conflict} INTO {table.name}({names}) VALUES ({marks})",
            (tuple(row[column] for column in table.columns) for row in rows),
        )

    def _mapped(self, table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Source rows with the target's ids in place of their own, but for those left out."""
        names = ", ".join(table.columns)
        skip = self.skip.get(table.name, set())
        order = " ORDER BY id" if table.has_id else ""
        for row in self.source.execute(f"SELECT {names} FROM {table.name}{order}"):
            values = dict(zip(table.columns, row, strict=True))
            source_id = values["id"] if table.has_id else 0
            if source_id not in skip and self._map_parents(table, values):
                yield source_id, values

    def _map_parents(self, table: Table, values: dict[str, Any]) -> bool:
        """Put the target's ids into `values`; False when a parent was left out."""
        for column, parent in table.parents.items():
            if values[column] is None:
                continue
            if parent == table.name:
                values[column] = None  # linked at the end, when all rows have their ids
                continue
            mapped = self._ids[parent].get(values[column])
            if mapped is None:
                return False
            values[column] = mapped
        return True

    def _link_parents(self) -> None:
        """A run's parent run, which may come after it."""
        ids = self._ids["run"]
        rows = self.source.execute("SELECT id, parent_id FROM run WHERE parent_id IS NOT NULL")
        links = [
            (ids[parent], ids[run])
            for run, parent in rows
            if run in self._new["run"] and run in ids and parent in ids
        ]
        self.target.executemany("UPDATE run SET parent_id = ? WHERE id = ?", links)

    def _finish_runs(self) -> None:
        """How a run ended, where it was still going when it first came."""
        ended = self.source.execute(
            "SELECT status, exit_code, finished_us, heartbeat_us, summary, uuid FROM run"
            " WHERE status <> 'running'"
        )
        self.target.executemany(
            "UPDATE run SET status = ?, exit_code = ?, finished_us = ?, heartbeat_us = ?,"
            " summary = ? WHERE uuid = ? AND status = 'running'",
            ended,
        )
