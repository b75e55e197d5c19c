"""A page about one thing: headed parts that scroll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from kclab.cli.table import STATUS_STYLES, Column, laid_out, printable
from kclab.tui.screen import LabScreen


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table as the command line lays it out, in whatever room it gets."""

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For Rich."""
        yield from laid_out(self.rows, self.columns, options.max_width)


def part(title: str, *content: RenderableType) -> Group:
    """A headed part of a page, after an empty line."""
    return Group(Text(), Text(printable(title), style="bold underline"), *content)


def fields_part(title: str, fields: Mapping[str, Any]) -> Group:
    """A part of `name  value` lines."""
    return part(title, fields_grid(fields))


def fields_grid(fields: Mapping[str, Any]) -> Table:
    """`name  value` lines; what is long goes on under its own beginning."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        text = "-" if value is None else printable(str(value))
        style = STATUS_STYLES.get(text.partition(" (")[0], "")
        grid.add_row(Text(name, style="bold"), Text(text, style=style))
    return grid


def table_part(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> list[RenderableType]:
    """A part that is a table; nothing for no rows."""
    return [part(title, FittedTable(rows, columns))] if rows else []


def lines_part(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """A part of plain sentences or commands; nothing for no lines."""
    return [part(title, *(Text(printable(line)) for line in lines))] if lines else []


class PageScreen(LabScreen):
    """A screen that is one page; `show` fills it."""

    DEFAULT_CSS = """
    PageScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "app.back", "Back", key_display="esc"),
        Binding("down,j", "scroll(1)", "Scroll", show=False),
        Binding("up,k", "scroll(-1)", "Scroll up", show=False),
        Binding("home,g", "top", "Top", show=False),
        Binding("end,G", "bottom", "End", show=False),
    ]

    def body(self) -> Iterable[Widget]:
        """One scrolling text."""
        with VerticalScroll():
            yield Static("reading …", id="page", markup=False)

    def show(self, parts: Iterable[RenderableType]) -> None:
        """Replace the page's content, keeping the place."""
        self.query_one("#page", Static).update(Group(*parts))

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_top(self) -> None:
        """Scroll to the beginning."""
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_bottom(self) -> None:
        """Scroll to the end."""
        self.query_one(VerticalScroll).scroll_end(animate=False)
