"""The Replay screen: every definition's last verdicts, counted by status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.style import Style
from textual import on
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.widget import Widget

from kclab.cli.table import STATUS_STYLES
from kclab.core.units import counted
from kclab.db.queries.verdict_matrix import STATUSES, verdict_matrix
from kclab.tui.rows import ListedRows
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable

ALL = "all definitions"

COLUMNS = (*STATUSES, "warned", "waiting")


def _count(count: int) -> str:
    return f"{count:,}" if count else "·"


FIELDS = (
    Field("definition", "definition", 16, grow=True, tail=True),
    *(Field(name, name, 7, show=_count, right=True, cell=True) for name in COLUMNS),
)

STYLES = {"warned": "yellow", "waiting": "cyan"}


class Matrix(RowTable):
    """A table whose cursor is a cell."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "column(-1)", "Left", show=False),
        Binding("right,l", "column(1)", "Right", show=False),
    ]

    column: reactive[int] = reactive(1)
    """Which of COLUMNS; failed ones at first, since one comes to see these."""

    def validate_column(self, column: int) -> int:
        """Keep it among the counts."""
        return max(0, min(column, len(COLUMNS) - 1))

    def watch_column(self) -> None:
        """Draw it elsewhere, and tell."""
        self.refresh()
        self.post_message(self.Moved(self, self.row))

    def action_column(self, columns: int) -> None:
        """Move by columns."""
        self.column += columns

    def cell_style(self, index: int, field: Field, text: str) -> Style:
        """Counts have their status's colour; the cell under the cursor stands out."""
        if not field.cell:
            return Style(bold=index == 0)
        if index == self.cursor and field.key == COLUMNS[self.column]:
            return self.style_of("cell")
        if text == "·":
            return self.style_of("dim")
        if index == self.cursor:
            return Style()
        return Style.parse(STYLES.get(field.key) or STATUS_STYLES.get(field.key, ""))


class ReplayScreen(LabScreen):
    """Verdicts by definition and status."""

    PLACE = "replay"
    ABOUT = (
        "How the last replay of every capture ended. warned: passed, but proves little; waiting: "
        "captured and never replayed. Enter on a count lists what it counts, and from there leads "
        "to the worst element, the errors and the oracle's verdict."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "only_bad", "Only not passed"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._matrix: list[dict[str, Any]] = []
        self._bad = False

    def body(self) -> Iterable[Widget]:
        """The matrix."""
        yield Matrix(FIELDS, empty="nothing was captured or replayed yet", id="matrix")

    @property
    def matrix(self) -> Matrix:
        """The table."""
        return self.query_one(Matrix)

    def on_mount(self) -> None:
        """Count."""
        self.matrix.focus()
        self.refresh_data()

    def on_screen_resume(self) -> None:
        """Count again: another screen may have been in front for long."""
        if self._matrix:
            self.refresh_data()

    def refresh_data(self) -> None:
        """Count again."""
        self.asked(verdict_matrix, self._counted)

    def _counted(self, matrix: list[dict[str, Any]]) -> None:
        self._matrix = matrix
        self._show()

    def _show(self) -> None:
        shown = [row for row in self._matrix if not self._bad or row["failed"] or row["error"]]
        rows = [_total(shown), *shown] if len(shown) > 1 else shown
        self.matrix.show(ListedRows(rows), keep_cursor=True)

    @on(RowTable.Moved)
    def _moved(self) -> None:
        row = self.matrix.row
        if row is None:
            return  # nothing is counted yet, or the count failed and says so
        told = counted(len(self._matrix), "definition")
        name = COLUMNS[self.matrix.column]
        self.tell(f"{told} · {row[name]:,} {name} of {row['definition']}")

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        from kclab.tui.verdicts import VerdictsScreen

        name = COLUMNS[self.matrix.column]
        count = event.row[name]
        if name == "waiting":
            self.tell(f"{count:,} were never replayed; `kclab replay` does what is waiting.")
        elif count:
            definition = event.row["definition"]
            self.app.push_screen(
                VerdictsScreen(definition=None if definition == ALL else definition, status=name)
            )

    def action_only_bad(self) -> None:
        """Show only definitions with failures or errors, or all again."""
        self._bad = not self._bad
        self._show()


def _total(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    return {"definition": ALL, **{name: sum(row[name] for row in rows) for name in COLUMNS}}
