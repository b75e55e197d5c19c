"""Runs by pages, in one of several orders, for a listing that scrolls."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclab.db.queries.paging import Anchor, Order, Survey
from kclab.db.queries.runs import (
    LISTED,
    SORTS,
    RunFilter,
    listed_run,
    run_conditions,
    stale_runs,
)

JOINS = "JOIN environment e ON e.id = r.environment_id"


ORDERS = {"started": False, "took": False, "command": True, "status": True}
"""The keys of SORTS that runs are listed by, and whether the least comes first: times begin with
the latest and the longest, words with A; of equal ones the newest comes first.
"""


@dataclass(frozen=True, slots=True)
class RunListing:
    """The runs that a filter finds; its direction and limit mean nothing here."""

    wanted: RunFilter
    """Its sort must be one of ORDERS."""
    turned: bool = False
    """The other way round."""

    def survey(self, connection: sqlite3.Connection, at: Anchor | None = None) -> Survey:
        """How many there are and where their pages begin."""
        return self._order(stale_runs(connection)).survey(connection, at)

    def page(
        self, connection: sqlite3.Connection, anchor: Anchor | None
    ) -> list[Mapping[str, Any]]:
        """The rows of `list_runs`, with `anchor`."""
        stale = stale_runs(connection)
        rows = self._order(stale).page(connection, f"r.id, {LISTED}", JOINS, anchor)
        return [listed_run(row, stale) for row in rows]

    def _order(self, stale: frozenset[int]) -> Order:
        found, sort = run_conditions(self.wanted, stale), self.wanted.sort
        up = ORDERS[sort] is not self.turned
        return Order("run r", SORTS[sort], "r.id", *found, key_up=up, id_up=self.turned)


def run_words(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The commands and tags that occur, for completing a filter."""
    return {
        "commands": [r[0] for r in connection.execute("SELECT DISTINCT command FROM run")],
        "tags": [r[0] for r in connection.execute("SELECT DISTINCT tag FROM run_tag ORDER BY tag")],
    }


def count_running(connection: sqlite3.Connection) -> int:
    """How many runs go on now."""
    row = connection.execute("SELECT count(*) FROM run WHERE status = 'running'").fetchone()
    return int(row[0]) - len(stale_runs(connection))
