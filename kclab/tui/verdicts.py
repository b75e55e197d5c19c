"""Verdicts one by one: of a cell of the matrix, or of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from kclab.cli.show import short, short_run, show_error, show_module, show_time
from kclab.core.units import counted
from kclab.db.queries.verdict_matrix import VerdictListing
from kclab.tui.rows import PagedRows, Row
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable

FIELDS = (
    Field("workload", "workload", 8, show=short),
    Field("definition", "definition", 14, grow=True, tail=True, room=100),
    Field("status", "status", 7),
    Field("place", "where", 16, grow=True, tail=True),
    Field("step", "step", 4, right=True),
    Field("rank", "rank", 4, right=True, room=120),
    Field("off", "off", 11, right=True),
    Field("max_abs", "max error", 9, show=show_error, right=True),
    Field("oracle", "oracle", 9),
    Field("started_us", "when", 12, show=show_time, room=90),
    Field("reason", "reason", 20, grow=True, room=130),
)


class ShownRows(PagedRows):
    """Verdicts with what a list says of them."""

    def row(self, index: int) -> Row | None:
        """See Rows."""
        row = super().row(index)
        if row is None:
            return None
        off = None if row["mismatched"] is None else f"{_share(row['mismatched'], row['elements'])}"
        place = show_module(row) if row["operation"] else row["origin"]
        return {**row, "off": off, "place": place}


def _share(part: int, whole: int) -> str:
    """How many of all elements are off, in words that are short."""
    if not part or not whole:
        return "0"
    percent = 100 * part / whole
    return f"{part:,}" if percent < 0.1 else f"{percent:.3g} %"


class VerdictsScreen(LabScreen):
    """Verdicts one by one, newest first."""

    PLACE = "replay"
    ABOUT = (
        "off: elements beyond the tolerance. max error: the largest absolute one. oracle: which "
        "side is wrong, if a replay with --oracle has asked."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "app.back", "Back", key_display="esc"),
        Binding("f", "failures", "Failures, all"),
    ]

    def __init__(
        self, *, definition: str | None = None, status: str | None = None, run: str | None = None
    ) -> None:
        super().__init__()
        self._definition, self._status, self._run = definition, status, run
        self._rows: PagedRows | None = None

    def body(self) -> Iterable[Widget]:
        """The list."""
        yield RowTable(FIELDS, empty="no verdict")

    @property
    def table(self) -> RowTable:
        """The list."""
        return self.query_one(RowTable)

    def on_mount(self) -> None:
        """Read the newest."""
        self.table.focus()
        self._list()

    def on_unmount(self) -> None:
        """Read no more."""
        if self._rows is not None:
            self._rows.stop()

    def refresh_data(self) -> None:
        """Read again what is in view."""
        if self._rows is not None:
            self._rows.refresh(self.table.cursor or None)

    def _list(self) -> None:
        if self._rows is not None:
            self._rows.stop()
        listing = VerdictListing(self._definition, self._status, self._run)
        self._rows = ShownRows(self.pages, self.lab.surveys, listing, self._changed, self.failed)
        self._rows.start()

    def _changed(self, moved: int) -> None:
        if not self.is_mounted or self._rows is None:
            return
        if self.table.rows is not self._rows:
            self.table.show(self._rows)
        else:
            self.table.rows_changed(moved)
        if self._rows.surveyed:
            self.tell(" · ".join(filter(None, self._told(self._rows.total))))

    def _told(self, total: int) -> Iterable[str | None]:
        yield counted(total, "verdict")
        yield self._status
        yield self._definition
        yield None if self._run is None else f"run {short_run(self._run)}"

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        from kclab.tui.verdict import VerdictScreen

        self.app.push_screen(VerdictScreen(event.row["id"], self.table))

    def action_failures(self) -> None:
        """Show failures alone, or all again."""
        self._status = None if self._status == "failed" else "failed"
        self._list()
