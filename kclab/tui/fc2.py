"""The FC2 screen: the best config from each workspace budget on, and the samples behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from kclab.cli.fc2_memory import BUDGETS
from kclab.cli.fc2_show import show_gain, show_numerics, with_text
from kclab.cli.show import short, show_time
from kclab.core.stats import Sample
from kclab.core.units import format_bytes
from kclab.db.queries.fc2_samples import best_steps, rival_results
from kclab.db.queries.fc2_samples import result_samples as samples_of
from kclab.tui.plots import strip_plot
from kclab.tui.rows import ListedRows
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable


def show_bytes_equal(exact: int) -> str:
    """Whether the bytes are the baseline's, in a word."""
    return "exact" if exact else "differs"


RESULT_FIELDS = (
    Field("ratio", "gain", 7, show=show_gain, right=True),
    Field("interval", "95 %", 17, right=True, room=104),
    Field("verdict", "verdict", 9),
    Field("exact", "bytes", 7, show=show_bytes_equal),
    Field("gates", "gates", 9, room=92),
    Field("b_ms", "ms", 8, show=lambda ms: f"{ms:.4g}", right=True, room=112),
    Field("config", "config", 12, grow=True),
    Field("measured_us", "measured", 12, show=show_time, room=130),
    Field("gpu", "gpu", 14, room=150),
)
BEST_FIELDS = (
    Field("shape", "MxNxK", 15),
    Field("numerics", "dtype", 8, show=show_numerics),
    Field("budget", "from", 6, show=format_bytes, right=True),
    *RESULT_FIELDS,
)
RIVAL_FIELDS = (
    Field("required_workspace", "needs", 8, show=format_bytes, right=True),
    *RESULT_FIELDS,
    Field("stage", "stage", 10, room=90),
)

Result = Mapping[str, Any]


def shown(row: Result) -> dict[str, Any]:
    """A result's row as tables show it."""
    row = with_text(row)
    return {**row, "shape": f"{row['m']}x{row['n']}x{row['k']}", "gates": row["gates"] or "-"}


class ResultsScreen(LabScreen):
    """A table of results, and the samples of the one under the cursor."""

    PLACE = "fc2"
    DEFAULT_CSS = """
    ResultsScreen #plot { height: auto; padding: 0 1; background: $surface; min-height: 8; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "rivals", "All verdicts"),
        Binding("t", "history", "History"),
    ]
    FIELDS: ClassVar[tuple[Field, ...]] = ()
    EMPTY: ClassVar[str] = ""

    def body(self) -> Iterable[Widget]:
        """The table and the plot."""
        yield RowTable(self.FIELDS, empty=self.EMPTY)
        yield Static(id="plot", markup=False)

    @property
    def table(self) -> RowTable:
        """The results."""
        return self.query_one(RowTable)

    def on_mount(self) -> None:
        """Read the results."""
        self._plotted: int | None = None
        self.table.focus()
        self.refresh_data()

    def on_resize(self) -> None:
        """Draw the plot as wide as it may be now."""
        self._plotted = None
        self._plot()

    @on(RowTable.Moved)
    def _plot(self) -> None:
        row = self.table.row
        if row is None or row["result_id"] == self._plotted:
            return
        self._plotted = row["result_id"]
        result: int = row["result_id"]
        self.asked(lambda c: samples_of(c, result), lambda s: self._draw(row, s), group="plot")

    def _draw(self, row: Result, samples: list[Sample]) -> None:
        plot = self.query_one("#plot", Static)
        width = (plot.size.width or self.size.width) - 2
        title = Text.assemble(
            (row["config"], "bold"), f"  {row['scope']}, {row['gates']}, result {row['result_id']}"
        )
        title.truncate(width, overflow="ellipsis")
        plot.update(Group(title, *strip_plot(samples, width)))

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        from kclab.tui.result import ResultScreen

        self.app.push_screen(ResultScreen(event.row["result_id"]))

    def action_rivals(self) -> None:
        """Every config that was measured on this workload, with its verdict."""
        if self.table.row is not None:
            self.app.push_screen(RivalsScreen(self.table.row["result_id"]))

    def action_history(self) -> None:
        """Every measurement of this config on this workload."""
        from kclab.tui.history import HistoryScreen

        if self.table.row is not None:
            self.app.push_screen(HistoryScreen(self.table.row["result_id"]))


class Fc2Screen(ResultsScreen):
    """The best config of each GEMM, from each workspace budget on."""

    ABOUT = (
        "One line for each budget that changes the answer: with 'from 4 MiB' this config is the "
        "best that needs no more than 4 MiB, up to the next line's budget. gain: B0 / B, the "
        "heuristic's first choice against this config, by ABBA pairs. A is the accepted baseline. "
        "The strip shows every sample; the bar under it spans half of them, ┻ is the median; +2 "
        "are two more beyond the right end."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "exactness", "Exact / any"),
    ]
    FIELDS = BEST_FIELDS
    EMPTY = "no config was measured yet; kclab fc2 sweep does"

    def __init__(self) -> None:
        super().__init__()
        self._inexact = False

    def on_screen_resume(self) -> None:
        """Read again: another screen may have been in front for long."""
        if self.table.ready:
            self.refresh_data()

    def refresh_data(self) -> None:
        """Read the best again."""
        self.asked(lambda c: best_steps(c, BUDGETS, inexact=self._inexact), self._show)

    def _show(self, rows: list[dict[str, Any]]) -> None:
        self.table.show(ListedRows([shown(row) for row in rows]), keep_cursor=True)
        workloads = len({row["workload"] for row in rows})
        told = "bytes may differ" if self._inexact else "same bytes as the baseline"
        self.tell(f"{len(rows)} best of {workloads} GEMMs · {told}")

    def action_exactness(self) -> None:
        """Admit configs whose bytes differ from the baseline's, or not."""
        self._inexact = not self._inexact
        self.refresh_data()


class RivalsScreen(ResultsScreen):
    """Every config measured on one GEMM, best first."""

    ABOUT = (
        "The last result of each config on this workload, scope and machine. FAST and SLOW are "
        "beyond the A/A noise, SAME within it, UNDECIDED may be either."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "app.back", "Back", key_display="esc"),
    ]
    FIELDS = RIVAL_FIELDS
    EMPTY = "nothing was measured"

    def __init__(self, result_id: int) -> None:
        super().__init__()
        self._result_id = result_id

    def refresh_data(self) -> None:
        """Read them again."""
        self.asked(lambda c: rival_results(c, self._result_id), self._show)

    def _show(self, rows: list[dict[str, Any]]) -> None:
        self.table.show(ListedRows([shown(row) for row in rows]), keep_cursor=True)
        if rows:
            row = shown(rows[0])
            counts = {
                v: sum(r["verdict"] == v for r in rows)
                for v in dict.fromkeys(r["verdict"] for r in rows)
            }
            told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            self.tell(f"{row['shape']} {row['numerics']} {short(row['workload'])} · {told}")
