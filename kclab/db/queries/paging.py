"""Pages of long listings: a listing of any length is read a page at a time, from any place.

Rows are ordered by (key, id), each up or down. A survey walks the order once inside SQLite and
hands out each page's first (key, id); a page is then a range of that order, so the last of a
hundred thousand rows costs what the first one does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

PAGE = 200
"""Rows of a page: a few screens."""

Anchor = tuple[Any, int]
"""(key, id) of a row; pages begin with one."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How long a listing is now, and where its pages begin."""

    total: int
    anchors: Sequence[Anchor]
    """Of rows 0, PAGE, 2 PAGE, …"""
    position: int | None
    """How many rows come before the one that was asked for."""


class Listing(Protocol):
    """A filtered listing that can be surveyed and read by pages."""

    def survey(self, connection: sqlite3.Connection, at: Anchor | None = None) -> Survey:
        """The listing as a whole; `at` is a row whose position is wanted, too."""

    def page(
        self, connection: sqlite3.Connection, anchor: Anchor | None
    ) -> list[Mapping[str, Any]]:
        """At most PAGE rows from `anchor` on (None: the first ones).

        Each row carries its own `anchor`.
        """


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a listing: a table with its conditions, and the columns that sort it."""

    source: str
    """What follows FROM, as far as the conditions need it."""
    key: str
    """A column or expression, never NULL."""
    id: str
    conditions: Sequence[str]
    values: Sequence[Any]
    key_up: bool = False
    id_up: bool = False
    """Whether the least comes first; by default the largest does, of equal keys that of the
    largest id.
    """

    def survey(self, connection: sqlite3.Connection, at: Anchor | None = None) -> Survey:
        """See Listing."""
        rows = connection.execute(
            f"SELECT k, i FROM (SELECT {self.key} AS k, {self.id} AS i, row_number() OVER"
            f" (ORDER BY {self._by}) AS n FROM {self.source}{self._where()}) WHERE n % {PAGE} = 1",
            self.values,
        )
        anchors = [(row[0], row[1]) for row in rows]
        return Survey(self._total(connection, anchors), anchors, self._position(connection, at))

    @property
    def _by(self) -> str:
        return f"{self.key} {_direction(self.key_up)}, {self.id} {_direction(self.id_up)}"

    def _total(self, connection: sqlite3.Connection, anchors: Sequence[Anchor]) -> int:
        """Whole pages, and what the last one holds: no second walk over all rows."""
        if not anchors:
            return 0
        last = sum(self._count(connection, *part) for part in self._from(anchors[-1]))
        return (len(anchors) - 1) * PAGE + last

    def _position(self, connection: sqlite3.Connection, at: Anchor | None) -> int | None:
        if at is None:
            return None
        turned = replace(self, key_up=not self.key_up, id_up=not self.id_up)
        return sum(turned._count(connection, *part) for part in turned._from(at, after=True))

    def _from(self, anchor: Anchor, *, after: bool = False) -> list[tuple[str, tuple[Any, ...]]]:
        """The rows from an anchor on, or after it: its own key's, then those of other keys.

        One condition for both ranges of the index would make SQLite read all rows of that key.
        """
        ids, keys = (">" if up else "<" for up in (self.id_up, self.key_up))
        same = f"{self.key} = ? AND {self.id} {ids}{'' if after else '='} ?"
        return [(same, anchor), (f"{self.key} {keys} ?", anchor[:1])]

    def _count(
        self, connection: sqlite3.Connection, condition: str, values: tuple[Any, ...]
    ) -> int:
        row = connection.execute(
            f"SELECT count(*) FROM {self.source}{self._where(condition)}", (*self.values, *values)
        ).fetchone()
        return int(row[0])

    def page(
        self, connection: sqlite3.Connection, select: str, joins: str, anchor: Anchor | None
    ) -> list[dict[str, Any]]:
        """The rows of a page, `select` over the source and these joins; each with `anchor`."""
        rows: list[dict[str, Any]] = []
        for condition, values in [("1", ())] if anchor is None else self._from(anchor):
            if len(rows) < PAGE:
                # The rows are chosen first: sorting without an index, SQLite would else work out
                # every column of every row.
                found = connection.execute(
                    f"SELECT {self.key} AS page_key, {self.id} AS page_id, {select}"
                    f" FROM {self.source} {joins} WHERE {self.id} IN (SELECT {self.id}"
                    f" FROM {self.source}{self._where(condition)}"
                    f" ORDER BY {self._by} LIMIT {PAGE - len(rows)}) ORDER BY {self._by}",
                    (*self.values, *values),
                )
                rows += [_anchored(row) for row in found]
        return rows

    def _where(self, *more: str) -> str:
        parts = [*self.conditions, *more]
        return f" WHERE {' AND '.join(parts)}" if parts else ""


def _direction(up: bool) -> str:
    return "ASC" if up else "DESC"


def _anchored(row: sqlite3.Row) -> dict[str, Any]:
    fields = dict(row)
    fields["anchor"] = (fields.pop("page_key"), fields.pop("page_id"))
    return fields
