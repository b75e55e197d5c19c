"""Finding the store that a command works on."""

from __future__ import annotations

import typer

from kclab.db.store import Store, locate_database


def current_store(context: typer.Context) -> Store:
    """The store named by --db, KCLAB_DB or the project's settings; nothing is created."""
    return Store.at(locate_database(context.find_root().obj))
