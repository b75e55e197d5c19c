"""A table that draws only the lines in view, whatever the number of rows behind it.

Textual's DataTable holds every row: 50,000 take it seven seconds. This one asks its `Rows` for the
two dozen that the terminal shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kclab.cli.table import STATUS_STYLES, printable
from kclab.tui.rows import ListedRows, Row, Rows

MARK = 2
"""Cells before the first column, for a row's mark."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column: the row's key, its heading, and how wide it is."""

    key: str
    title: str
    width: int
    """Cells; a growing one gets what is left, and at least this."""
    show: Callable[[Any], str] | None = None
    right: bool = False
    grow: bool = False
    tail: bool = False
    """Keeps its end rather than its start where it is cut: for names that begin alike."""
    room: int = 0
    """Shown only where the table is at least this wide."""
    cell: bool = False
    """May be walked to, in a table with a cell cursor."""
    sparse: bool = False
    """Left out where no row has it; for rows that are all here."""


class RowTable(ScrollView, can_focus=True):
    """Rows with a cursor; `show` gives it something to show."""

    DEFAULT_CSS = """
    RowTable { height: 1fr; background: $background; scrollbar-size-vertical: 1;
               overflow-x: hidden; overflow-y: scroll; }
    RowTable > .table--head { text-style: bold; color: $text-muted; background: $surface; }
    RowTable > .table--cursor { background: $primary-muted; text-style: bold; }
    RowTable:focus > .table--cursor { background: $primary; color: $text; text-style: bold; }
    RowTable > .table--mark { color: $warning; text-style: bold; }
    RowTable > .table--dim { color: $text-disabled; }
    RowTable > .table--cell { background: $accent; color: $text; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--head",
        "table--cursor",
        "table--mark",
        "table--dim",
        "table--cell",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
        Binding("enter", "choose", "Open"),
    ]

    cursor: reactive[int] = reactive(0)

    @dataclass
    class Moved(Message):
        """The cursor is on another row, or on other content."""

        table: RowTable
        row: Row | None

    @dataclass
    class Chosen(Message):
        """Enter, or a click on the row under the cursor."""

        table: RowTable
        row: Row

    def __init__(
        self, fields: Sequence[Field], *, empty: str = "nothing here", **more: Any
    ) -> None:
        super().__init__(**more)
        self.fields = fields
        self.empty = empty
        self.rows: Rows = ListedRows(())
        self.ready = False
        """Whether there was anything to show yet; until then it says that it reads."""
        self.marks: Mapping[str, str] = {}
        """uuid of a row to the letter before it."""
        self.sorted_by: tuple[str, bool] | None = None
        """The key of the field that the rows are sorted by, and whether the least comes first."""
        self._layout: list[tuple[Field, int]] = []

    def show(self, rows: Rows, *, keep_cursor: bool = False) -> None:
        """Show other rows, from the first one unless `keep_cursor`."""
        self.rows, self.ready = rows, True
        self._fit()
        if not keep_cursor:
            self.cursor = 0
            self.scroll_to(y=0, animate=False, force=True)
        self.rows_changed()

    def rows_changed(self, moved: int = 0) -> None:
        """Draw what the rows are now; a row that `moved` takes cursor and view along."""
        self.virtual_size = Size(self.size.width, self.rows.total + 1)
        if moved and self.cursor:
            self.cursor += moved
            self.scroll_to(y=self.scroll_offset.y + moved, animate=False, force=True)
        self.cursor = self.cursor
        self.refresh()
        self.post_message(self.Moved(self, self.row))

    @property
    def row(self) -> Row | None:
        """The row under the cursor."""
        return self.rows.row(self.cursor) if self.rows.total else None

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a row."""
        return max(0, min(cursor, self.rows.total - 1))

    def watch_cursor(self) -> None:
        """Keep the cursor in view."""
        top, height = self.scroll_offset.y, max(self.size.height - 1, 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)
        self.refresh()
        self.post_message(self.Moved(self, self.row))

    def action_move(self, rows: int) -> None:
        """Move the cursor by some rows."""
        self.cursor += rows

    def action_page(self, pages: int) -> None:
        """Move the cursor by whole screens."""
        self.cursor += pages * max(self.size.height - 2, 1)

    def action_first(self) -> None:
        """To the first row."""
        self.cursor = 0

    def action_last(self) -> None:
        """To the last row."""
        self.cursor = self.rows.total - 1

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self.row is not None:
            self.post_message(self.Chosen(self, self.row))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; one on the cursor opens."""
        index = self.scroll_offset.y + event.y - 1
        if event.y < 1 or index >= self.rows.total:
            return
        if index == self.cursor:
            self.action_choose()
        self.cursor = index

    def on_resize(self) -> None:
        """Fit the columns, and keep the cursor in view."""
        self._fit()
        self.virtual_size = Size(self.size.width, self.rows.total + 1)
        self.watch_cursor()

    def _fit(self) -> None:
        filled = self.fields
        if isinstance(self.rows, ListedRows):
            rows = self.rows.rows
            filled = [
                field
                for field in self.fields
                if not field.sparse or any(row.get(field.key) is not None for row in rows)
            ]
        self._layout = fitted(filled, self.scrollable_content_region.width - MARK)

    def render_line(self, y: int) -> Strip:
        """One line of the view: the heading, a row, or nothing."""
        width = self.scrollable_content_region.width
        if y == 0:
            return self._strip(self._heading(), width, self.style_of("head"))
        index = self.scroll_offset.y + y - 1
        if index >= self.rows.total:
            return self._rest(y, width)
        row = self.rows.row(index)
        if row is None:
            return self._strip([("  …", self.style_of("dim"))], width, Style())
        base = self.style_of("cursor") if index == self.cursor else Style()
        return self._strip(self._cells(row, index), width, base)

    def style_of(self, part: str) -> Style:
        """The style of a part of the table."""
        return self.get_component_rich_style(f"table--{part}", partial=True)

    def _rest(self, y: int, width: int) -> Strip:
        text = "" if self.rows.total or y != 2 else self.empty if self.ready else "reading …"
        return self._strip([(f"  {text}", self.style_of("dim"))], width, Style())

    def _heading(self) -> list[tuple[str, Style]]:
        return [(" " * MARK, Style())] + [
            (aligned(self._title(field), width, field) + " " * gap(field), Style())
            for field, width in self._layout
        ]

    def _title(self, field: Field) -> str:
        if self.sorted_by is None or self.sorted_by[0] != field.key:
            return field.title
        return field.title + ("▴" if self.sorted_by[1] else "▾")

    def _cells(self, row: Row, index: int) -> list[tuple[str, Style]]:
        mark = self.marks.get(row.get("uuid", ""), "")
        parts = [(f"{mark:<{MARK}}", self.style_of("mark"))]
        for field, width in self._layout:
            text = cell_text(row, field)
            # On the cursor's own colour a word's colour would be hard to read.
            word = "" if index == self.cursor else STATUS_STYLES.get(text, "")
            style = Style.parse(word) + self.cell_style(index, field, text)
            parts += [(aligned(text, width, field), style), (" " * gap(field), Style())]
        return parts

    def cell_style(self, index: int, field: Field, text: str) -> Style:
        """What a cell has besides its row's style and its word's."""
        return Style()

    def _strip(self, parts: Sequence[tuple[str, Style]], width: int, base: Style) -> Strip:
        base = self.rich_style + base
        strip = Strip([Segment(text, base + style) for text, style in parts])
        return strip.adjust_cell_length(width, base)


def cell_text(row: Row, field: Field) -> str:
    """What stands in a cell: one line, nothing that steers a terminal."""
    value = row.get(field.key)
    if value is None:
        return "-"
    return printable(" ".join((field.show(value) if field.show else str(value)).split("\n")))


def aligned(text: str, width: int, field: Field) -> str:
    """A text in exactly `width` cells."""
    length = cell_len(text)
    if length > width:
        if field.tail:
            return "…" + text[len(text) - width + 1 :]
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return f"{' ' * (width - length)}{text}" if field.right else f"{text}{' ' * (width - length)}"


def gap(field: Field) -> int:
    """Cells after a column: what ends at its edge needs more to stand apart."""
    return 2 if field.right else 1


def fitted(fields: Sequence[Field], room: int) -> list[tuple[Field, int]]:
    """The fields that are shown in a table so wide, with their widths."""
    shown = [field for field in fields if field.room <= room]
    spare = max(room - sum(field.width + gap(field) for field in shown), 0)
    growing = sum(field.grow for field in shown)
    widths = []
    for field in shown:
        more = spare // growing if field.grow else 0
        spare, growing = spare - more, growing - field.grow
        widths.append((field, field.width + more))
    return widths
