"""The rows behind a table: all in memory, or read by pages as they scroll into view."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kclab.core.errors import KclabError
from kclab.db.queries.paging import PAGE, Anchor, Listing, Survey
from kclab.tui.reader import Reader

Row = Mapping[str, Any]

KEPT_PAGES = 40
"""Pages held in memory at most."""


class Rows(Protocol):
    """What a table shows."""

    total: int

    def row(self, index: int) -> Row | None:
        """The row at a place, or None while it is being read."""


class ListedRows:
    """Rows that are all here."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.total = len(rows)

    def row(self, index: int) -> Row | None:
        """See Rows."""
        return self.rows[index] if index < self.total else None


class PagedRows:
    """Rows of a listing, read a page at a time.

    Pages come through `reader`; the `surveyor` walks over all rows and may take a while.
    `changed(moved)` is called whenever there is something new to draw; `moved` says by how many
    places the row that `refresh` was told of has moved.
    """

    def __init__(
        self,
        reader: Reader,
        surveyor: Reader,
        listing: Listing,
        changed: Callable[[int], None],
        failed: Callable[[KclabError], None],
    ) -> None:
        self._reader, self._surveyor, self._listing = reader, surveyor, listing
        self._changed, self._failed = changed, failed
        self._anchors: Sequence[Anchor | None] = [None]
        self._pages: OrderedDict[int, Sequence[Row]] = OrderedDict()
        self._old: dict[int, Sequence[Row]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self.total = 0
        self.surveyed = False

    def start(self) -> None:
        """Read the first page, then how many there are."""
        self._want(0)
        self.refresh()

    def stop(self) -> None:
        """Want nothing any more; questions not yet put are dropped."""
        for task in (*self._tasks.values(), self._refreshing):
            if task is not None:
                task.cancel()

    def row(self, index: int) -> Row | None:
        """See Rows; asks for the page of a row that is not here."""
        number, place = divmod(index, PAGE)
        page = self._pages.get(number)
        if page is None:
            self._want(number)
            page = self._old.get(number, ())
        else:
            self._pages.move_to_end(number)
        return page[place] if place < len(page) else None

    def refresh(self, index: int | None = None) -> None:
        """The database changed: survey again, following the row at `index`."""
        if self._refreshing is None or self._refreshing.done():
            row = None if index is None else self.row(index)
            self._refreshing = asyncio.create_task(self._survey(index, row))

    async def _survey(self, index: int | None, row: Row | None) -> None:
        at = None if row is None else row["anchor"]
        try:
            found = await self._surveyor.ask(partial(self._listing.survey, at=at))
        except KclabError as error:
            self._failed(error)
            return
        self._take(found)
        moved = 0 if index is None or found.position is None else found.position - index
        self._changed(moved)

    def _take(self, found: Survey) -> None:
        self.total = found.total
        self._anchors = [None, *found.anchors[1:]]
        if self.surveyed:
            # What was read before is shown until its page is read again.
            self._old = dict(self._pages) or self._old
            for task in self._tasks.values():
                task.cancel()
            self._tasks.clear()
            self._pages.clear()
        self.surveyed = True

    def _want(self, number: int) -> None:
        if number not in self._tasks and number < len(self._anchors):
            self._tasks[number] = asyncio.create_task(self._read(number))

    async def _read(self, number: int) -> None:
        anchor = self._anchors[number]
        try:
            page = await self._reader.ask(lambda c: self._listing.page(c, anchor))
        except KclabError as error:
            self._failed(error)
            return
        self._pages[number] = page
        self._old.pop(number, None)
        if len(self._pages) > KEPT_PAGES:
            self._pages.popitem(last=False)
        if not self.surveyed:
            self.total = len(page)
        self._tasks.pop(number, None)
        self._changed(0)
