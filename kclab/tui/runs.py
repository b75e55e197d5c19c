"""The Runs screen: what ran, filtered, live; mark two to compare them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from kclab.cli.show import short_run, show_time
from kclab.core.errors import KclabError
from kclab.core.units import counted, format_duration
from kclab.core.when import local_time
from kclab.db.queries.run_pages import ORDERS, RunListing, count_running, run_words
from kclab.db.queries.runs import RunFilter
from kclab.tui.rows import PagedRows
from kclab.tui.run_filter import FilterBar, filter_of
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable

FIELDS = (
    Field("uuid", "run", 13, show=short_run),
    Field("command", "command", 9),
    Field("mode", "mode", 12, room=110),
    Field("status", "status", 11),
    Field("started_us", "started", 12, show=show_time),
    Field("took_us", "took", 11, show=lambda us: format_duration(us / 1e6), right=True),
    Field("tags", "tags", 16, show=lambda tags: " ".join(tags) or "-", room=130),
    Field("host", "host", 12, room=150),
    Field("summary", "summary", 12, grow=True),
)


SORTED_FIELDS = {"started": "started_us", "took": "took_us"}
"""Orders whose field has another key."""


class RunsScreen(LabScreen):
    """Every run, newest first unless sorted otherwise."""

    PLACE = "runs"
    ABOUT = (
        "Every command that produced data is a run. A run whose process is gone shows as stale. "
        "The list follows the database as it changes.\n\n"
        "The filter's words: command and status may be beginnings, several by commas; tags must "
        "all be there; since takes yesterday, 2h, 3 days ago, 2026-11-29; text is looked for in "
        "the uuid, the summary, the note, the host and what was typed. Right arrow completes.\n\n"
        "The column with an arrow is what the list is sorted by: ▾ the largest first, ▴ the least. "
        "Runs that are equal in it come newest first."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "filter('text')",
            "Filter",
            key_display="/",
            tooltip="filter by text",
            # Or a key typed right behind would meet the list, where q quits.
            priority=True,
        ),
        Binding(
            "f",
            "filter('command')",
            "Filter fields",
            show=False,
            priority=True,
            tooltip="filter by command; tab goes on to status, tag, since",
        ),
        Binding("x", "clear_filter", "Clear", show=False),
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", "Other way round", show=False),
        Binding("space", "mark", "Mark", key_display="␣"),
        Binding("c", "compare", "Compare"),
        Binding("d", "diff", "Diff"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[str] = []
        self._known: dict[str, list[str]] = {"commands": [], "tags": []}
        self._rows: PagedRows | None = None
        self._wanted = RunFilter()
        self._turned = False
        self._live = 0

    def body(self) -> Iterable[Widget]:
        """The filter and the list."""
        yield FilterBar()
        yield RowTable(FIELDS, empty="no run matches", id="runs")

    @property
    def table(self) -> RowTable:
        """The list."""
        return self.query_one("#runs", RowTable)

    def on_mount(self) -> None:
        """Show the newest runs at once; the rest is counted after."""
        self.table.focus()
        self._list(self._wanted)
        self._look_around()

    def refresh_data(self) -> None:
        """Read again what is in view."""
        if self._rows is not None:
            # At the top one wants to see what is new; elsewhere the row stays where it is.
            self._rows.refresh(self.table.cursor or None)
        self._look_around()

    def _look_around(self) -> None:
        self.asked(lambda c: (run_words(c), count_running(c)), self._looked, group="words")

    def _looked(self, found: tuple[dict[str, list[str]], int]) -> None:
        if self._known != found[0]:
            self._known = found[0]
            self.query_one(FilterBar).complete(self._known)
        self._live = found[1]
        self._count()

    def _list(self, wanted: RunFilter) -> None:
        if self._rows is not None:
            self._rows.stop()
        self._wanted = wanted
        listing = RunListing(wanted, self._turned)
        self._rows = PagedRows(self.pages, self.lab.surveys, listing, self._changed, self.failed)
        self._rows.start()

    def _changed(self, moved: int) -> None:
        if not self.is_mounted or self._rows is None:
            return
        if self.table.rows is not self._rows:
            sort = self._wanted.sort
            self.table.sorted_by = (SORTED_FIELDS.get(sort, sort), ORDERS[sort] is not self._turned)
            self.table.show(self._rows)
        else:
            self.table.rows_changed(moved)
        self._count()

    def _count(self) -> None:
        if self._rows is None or not self._rows.surveyed:
            return
        parts = [counted(self._rows.total, "run")]
        if self._wanted != RunFilter(sort=self._wanted.sort):
            parts[0] += " matching"
        if self._wanted.since_us is not None:
            parts.append(f"since {local_time(self._wanted.since_us):%Y-%m-%d %H:%M}")
        if self._live:
            parts.append(f"{self._live} running")
        parts += [
            f"{letter} {short_run(uuid)}" for letter, uuid in zip("AB", self.marked, strict=False)
        ]
        self.tell(" · ".join(parts))

    @on(FilterBar.Changed)
    def _filter_changed(self, event: FilterBar.Changed) -> None:
        try:
            wanted = filter_of(event.words, self._known)
        except KclabError as error:
            self.failed(error)
            return
        wanted = replace(wanted, sort=self._wanted.sort)
        if wanted != self._wanted:
            self._list(wanted)
        else:
            self._count()

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        self.open_run(event.row["uuid"])

    def open_run(self, uuid: str) -> None:
        """Show one run's page."""
        from kclab.tui.run import RunScreen

        self.app.push_screen(RunScreen(uuid))

    def filter_by(self, **words: str) -> None:
        """Filter by these words alone."""
        self.query_one(FilterBar).fill(**words)

    def sort_by(self, order: str) -> None:
        """Sort by a key of ORDERS, in its own direction."""
        self._turned = False
        self._list(replace(self._wanted, sort=order))

    def action_filter(self, name: str) -> None:
        """Go to one of the filter's words."""
        self.set_focus(self.query_one(f"#{name}"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Within the filter, the keys that lead there are text."""
        return action != "filter" or not isinstance(self.focused, Input)

    def action_leave_filter(self) -> None:
        """Back to the list."""
        self.set_focus(self.table)

    def action_clear_filter(self) -> None:
        """Show every run."""
        self.filter_by()
        self.set_focus(self.table)

    def action_sort(self) -> None:
        """Sort by the next column: started, took, command, status."""
        orders = [*ORDERS]
        place = orders.index(self._wanted.sort) + 1
        self.sort_by(orders[place % len(orders)])

    def action_turn(self) -> None:
        """Sort the other way round."""
        self._turned = not self._turned
        self._list(self._wanted)

    def action_mark(self) -> None:
        """Mark the run under the cursor, or take its mark off; a third mark replaces the first."""
        row = self.table.row
        if row is None:
            return
        if row["uuid"] in self.marked:
            self.marked.remove(row["uuid"])
        else:
            self.marked = [*self.marked[-1:], row["uuid"]]
        self.table.marks = dict(zip(self.marked, "AB", strict=False))
        self.table.cursor += 1
        self.table.refresh()
        self._count()

    def action_compare(self) -> None:
        """Compare the two marked runs, A before B."""
        from kclab.tui.compare import CompareScreen

        if pair := self._pair():
            self.app.push_screen(CompareScreen(*pair))

    def action_diff(self) -> None:
        """Show how the two marked runs' parameters and environments differ."""
        from kclab.tui.compare import DiffScreen

        if pair := self._pair():
            self.app.push_screen(DiffScreen(*pair))

    def _pair(self) -> tuple[str, str] | None:
        """The marked runs; one mark goes with the run under the cursor."""
        row: Any = self.table.row
        marked = list(self.marked)
        if len(marked) == 1 and row is not None and row["uuid"] != marked[0]:
            marked.append(row["uuid"])
        if len(marked) == 2:
            return marked[0], marked[1]
        self.tell("mark two runs with the space bar first: A, then B.", problem=True)
        return None
