"""Every measurement of one config on one GEMM: intervals under each other, newest on top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from kclab.cli.fc2_show import show_gain
from kclab.cli.plots import interval_bar
from kclab.cli.show import show_time
from kclab.db.queries.fc2_samples import config_measurements
from kclab.tui.fc2 import show_bytes_equal, shown
from kclab.tui.rows import ListedRows
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable

BAR = 20

FIELDS = (
    Field("measured_us", "measured", 12, show=show_time),
    Field("ratio", "gain", 7, show=show_gain, right=True),
    Field("bar", "95 % interval", BAR),
    Field("verdict", "verdict", 9),
    Field("exact", "bytes", 7, show=show_bytes_equal, room=92),
    Field("changed", "changed since before", 20, grow=True),
    Field("gates", "gates", 9, room=110),
    Field("stage", "stage", 10, room=124),
)


class HistoryScreen(LabScreen):
    """One config over time."""

    PLACE = "fc2"
    ABOUT = (
        "Every measurement of the config on this workload. All intervals share one axis; ┊ is no "
        "gain at all. What changed in the machine or its libraries is named where it changed."
    )
    DEFAULT_CSS = """
    HistoryScreen #config { height: 1; padding: 0 1; background: $surface; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "app.back", "Back", key_display="esc"),
    ]

    def __init__(self, result_id: int) -> None:
        super().__init__()
        self._result_id = result_id

    def body(self) -> Iterable[Widget]:
        """Which config, and the table."""
        yield Static(id="config", markup=False)
        yield RowTable(FIELDS, empty="nothing was measured")

    def on_mount(self) -> None:
        """Read."""
        self.query_one(RowTable).focus()
        self.refresh_data()

    def refresh_data(self) -> None:
        """Read again."""
        self.asked(lambda c: config_measurements(c, self._result_id), self._show)

    def _show(self, found: list[dict[str, Any]]) -> None:
        bounds = bounds_of(found)
        rows = [
            {
                **shown(row),
                "bar": interval_bar(row["ratio_low"], row["ratio"], row["ratio_high"], bounds, BAR),
            }
            for row in found
        ]
        self.query_one(RowTable).show(ListedRows(rows), keep_cursor=True)
        if rows:
            one = rows[0]
            told = f"{one['config']}  {one['shape']} {one['numerics']}  {one['scope']}"
            self.query_one("#config", Static).update(told)
            low, high = (show_gain(bound) for bound in bounds)
            self.tell(f"{len(rows)} measured · axis from {low} to {high}")

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        from kclab.tui.result import ResultScreen

        self.app.push_screen(ResultScreen(event.row["result_id"]))


def bounds_of(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The axis that holds every interval and 1."""
    ends = [row[n] for row in rows for n in ("ratio_low", "ratio", "ratio_high")]
    known = [1.0, *(end for end in ends if end is not None)]
    low, high = min(known), max(known)
    margin = (high - low or 0.01) * 0.05
    return low - margin, high + margin
