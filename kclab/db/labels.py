"""Tags and notes on runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from kclab.core.errors import BadUsage
from kclab.db.connection import writing

MAX_TAG = 64
"""Characters."""


def add_tags(connection: sqlite3.Connection, run_id: int, tags: Sequence[str]) -> int:
    """Put tags on a run; returns how many it did not have. Raises BadUsage for an unfit one."""
    for tag in tags:
        _check(tag)
    with writing(connection):
        before = connection.total_changes
        connection.executemany(
            "INSERT INTO run_tag(run_id, tag) VALUES (?, ?) ON CONFLICT DO NOTHING",
            [(run_id, tag) for tag in tags],
        )
        return connection.total_changes - before


def remove_tags(connection: sqlite3.Connection, run_id: int, tags: Sequence[str]) -> int:
    """Take tags off a run; returns how many it had."""
    with writing(connection):
        before = connection.total_changes
        connection.executemany(
            "DELETE FROM run_tag WHERE run_id = ? AND tag = ?", [(run_id, tag) for tag in tags]
        )
        return connection.total_changes - before


def set_note(connection: sqlite3.Connection, run_id: int, text: str) -> None:
    """Replace a run's note; blank text removes it."""
    with writing(connection):
        connection.execute("UPDATE run SET note = ? WHERE id = ?", (text.strip() or None, run_id))


def _check(tag: str) -> None:
    if not tag or len(tag) > MAX_TAG or "," in tag or not tag.isprintable() or tag.split() != [tag]:
        raise BadUsage(
            f"{tag!r} cannot be a tag: a tag is one word of at most {MAX_TAG} characters, "
            "without commas."
        )
