"""The definitions that a store holds."""

from __future__ import annotations

import json
import sqlite3

from kclab.core.definition import Definition


def stored_definitions(connection: sqlite3.Connection) -> list[tuple[Definition, str | None]]:
    """(definition, where it came from) of every version of every name, newest versions first.

    A broken reference that came with a dataset is in its `reference_problem`.
    """
    rows = connection.execute(
        "SELECT name, body, origin FROM definition ORDER BY name, added_us DESC, id DESC"
    )
    return [
        (
            Definition.from_foreign(json.loads(row["body"]), f"definition {row['name']}"),
            row["origin"],
        )
        for row in rows
    ]
