"""What the command palette offers besides Textual's own: places, filters, orders, runs by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from kclab.cli.show import short_run, show_time
from kclab.db.queries.run_pages import ORDERS
from kclab.db.queries.runs import RunFilter, list_runs
from kclab.tui.bars import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclab.tui.app import KclabApp

FILTERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Runs of today", {"since": "today"}),
    ("Runs since yesterday", {"since": "yesterday"}),
    ("Runs that failed", {"status": "failed error"}),
    ("Runs that go on", {"status": "running"}),
    ("Runs that died", {"status": "stale"}),
    ("All runs", {}),
)

FOUND_RUNS = 8
"""Runs offered for a text."""


class LabCommands(Provider):
    """Places, filters and orders."""

    @property
    def lab(self) -> KclabApp:
        """The app, by its own type."""
        return cast("KclabApp", self.app)

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        for mode, key, name in PLACES:
            yield f"Go to {name}", f"key {key}", partial(self.lab.action_go, mode)
        for name, words in FILTERS:
            told = ", ".join(f"{k} {v}" for k, v in words.items()) or "no filter"
            yield name, told, partial(self.lab.show_runs, **words)
        for order in ORDERS:
            yield f"Sort runs by {order}", "keys s, S", partial(self.lab.sort_runs, order)
        yield "Compare the marked runs", "key c", self.lab.compare_runs
        yield "Open the last run", "the newest one", partial(self.lab.open_run, "last")

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for name, told, command in self._commands():
            yield DiscoveryHit(name, command, help=told)

    async def search(self, query: str) -> Hits:
        """Those whose name fits."""
        matcher = self.matcher(query)
        for name, told, command in self._commands():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), command, help=told)


class RunCommands(Provider):
    """Runs in which the text occurs."""

    async def search(self, query: str) -> Hits:
        """The newest runs with the text in uuid, summary, note, host or what was typed."""
        lab = cast("KclabApp", self.app)
        wanted = RunFilter(text=query, limit=FOUND_RUNS)
        for row in await lab.details.ask(lambda c: list_runs(c, wanted)):
            name = f"Run {short_run(row['uuid'])}  {row['command']}  {row['status']}"
            told = f"{show_time(row['started_us'])}: {row['summary'] or 'no summary'}"
            yield Hit(0.5, name, partial(lab.open_run, row["uuid"]), help=told)
