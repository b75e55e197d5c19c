"""Reading the database from a terminal app: off the event loop, never in a writer's way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kclab.db.connection import translated
from kclab.db.store import Store

Answer = TypeVar("Answer")


class Reader:
    """One read-only connection on a thread of its own; questions are answered in turn.

    A question fetches all that it wants and leaves no statement open, so that its transaction
    ends with it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kclab-read")
        self._connection: sqlite3.Connection | None = None
        self.waiting = 0
        """Questions that are not answered yet."""

    async def ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The answer to a question; raises kclab's errors.

        Cancelled before its turn, a question is never put.
        """
        self.waiting += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(self._answer, question))
        finally:
            self.waiting -= 1

    def _answer(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        with translated(self._store.database):
            if self._connection is None:
                self._connection = self._store.read()
            return question(self._connection)

    async def close(self) -> None:
        """Close the connection and end the thread."""
        await asyncio.wrap_future(self._thread.submit(self._close))
        self._thread.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has changed the database."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
