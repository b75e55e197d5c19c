"""How a store is: its database, its journal, its disk. Nothing is created or changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing

from kclab.core.errors import DatabaseMissing, DatabaseOutdated, DatabaseProblem
from kclab.core.filesystem import FLEETING, UNSAFE_FOR_WAL, file_system_type
from kclab.core.machine import Finding, State, free_space_finding, problem
from kclab.core.units import counted, format_bytes
from kclab.db.connection import journal_mode
from kclab.db.queries.runs import stale_runs
from kclab.db.revision import SCHEMA_REVISION
from kclab.db.store import Store


def store_findings(store: Store) -> Iterable[Finding]:
    """The database and its schema, WAL, runs that died, file system and free disk."""
    try:
        connection = store.read()
    except DatabaseMissing:
        found = f"{store.database} is not there yet"
        advice = "the first command that writes makes it"
        yield Finding("store", "database", State.ABSENT, found, advice)
    except DatabaseOutdated as error:
        yield problem("store", "database", error, State.WARNING)
    except DatabaseProblem as error:
        yield problem("store", "database", error, State.BROKEN)
    else:
        with closing(connection):
            yield from _database(store, connection)
    yield _file_system(store)
    yield free_space_finding(store.database.parent)


def _database(store: Store, connection: sqlite3.Connection) -> Iterable[Finding]:
    size = format_bytes(store.database.stat().st_size)
    runs = connection.execute("SELECT count(*) FROM run").fetchone()[0]
    found = f"{store.database}, {size}, {counted(runs, 'run')}, schema {SCHEMA_REVISION} (current)"
    yield Finding("store", "database", State.OK, found)
    yield _journal(connection)
    if stale := len(stale_runs(connection)):
        advice = "kclab runs list --status stale"
        yield Finding("store", "runs", State.WARNING, f"{stale} died without an end", advice)


def _journal(connection: sqlite3.Connection) -> Finding:
    # The pragma answers with what is really in force, which need not be what was asked for.
    mode = journal_mode(connection)
    if mode == "wal":
        return Finding("store", "journal", State.OK, "WAL: readers never wait for a writer")
    found = f"{mode} instead of WAL: readers and writers wait for each other"
    advice = "move the store to a local disk and run `kclab db upgrade`"
    return Finding("store", "journal", State.WARNING, found, advice)


def _file_system(store: Store) -> Finding:
    kind = file_system_type(store.database.parent)
    if kind is None:
        return Finding("store", "file system", State.OK, "unknown")
    if kind in UNSAFE_FOR_WAL:
        found = f"{kind}, {UNSAFE_FOR_WAL[kind]}: several processes may damage the database"
        advice = "keep the store on a local disk"
        return Finding("store", "file system", State.WARNING, found, advice)
    if kind in FLEETING:
        found, advice = f"{kind}, gone after a reboot", "keep what matters on a disk"
        return Finding("store", "file system", State.WARNING, found, advice)
    return Finding("store", "file system", State.OK, kind)
