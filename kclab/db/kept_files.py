"""Which kept files (see `kclab.blob.kept`) the rows name: images that requests brought."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from kclab.blob.kept import KeptName

_OUTPUTS = (
    "SELECT request.id, o.fullkey, json_extract(o.value, '$.path'),"
    " json_extract(o.value, '$.elsewhere')"
    " FROM request, json_each(request.response, '$.outputs') o WHERE o.type = 'object'"
)


def named_files(connection: sqlite3.Connection) -> dict[KeptName, bool]:
    """Each named file, and whether every row that names it says that its bytes are elsewhere.

    Rows that came from other programs name files by paths of their own; those are not kept here.
    """
    found: dict[KeptName, bool] = {}
    for _, _, place, elsewhere in connection.execute(_OUTPUTS):
        name = KeptName.parse(place) if isinstance(place, str) else None
        if name is not None:
            found[name] = found.get(name, True) and bool(elsewhere)
    return found


def is_named(connection: sqlite3.Connection, name: KeptName) -> bool:
    """Whether a row names this file."""
    query = "SELECT 1 FROM request WHERE instr(response, ?) LIMIT 1"
    return connection.execute(query, (name.sha256[2:],)).fetchone() is not None


def mark_elsewhere(
    connection: sqlite3.Connection, names: Collection[KeptName] | None = None
) -> None:
    """Say in the rows that these files (all, unless given) do not lie beside the database."""
    for request, where, place, _ in connection.execute(_OUTPUTS).fetchall():
        name = KeptName.parse(place) if isinstance(place, str) else None
        if name is not None and (names is None or name in names):
            connection.execute(
                "UPDATE request SET response = json_set(response, ?, json('true')) WHERE id = ?",
                (f"{where}.elsewhere", request),
            )
