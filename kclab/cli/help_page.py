"""Typer's help, with the names of options whole where the terminal is narrow.

Typer gives long names, short names and their negations a column each, and cuts all of them to the
width that the help text leaves: at 80 columns `--fast-accumula…` is nothing that a person can type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.table import Table
from rich.text import Text
from typer import rich_utils

OPTION_CELLS = 6
"""Long, short, negated long, negated short, type, help; one more in front where some are required.
"""


class OptionTable(Table):
    """A table that writes an option's names below each other and never cuts them."""

    def add_row(self, *cells: Any, **how: Any) -> None:
        """Typer's row of an option; any other table's row stays as it is."""
        front = cells[:-OPTION_CELLS]
        if len(cells) not in (OPTION_CELLS, OPTION_CELLS + 1):
            super().add_row(*cells, **how)
            return
        long, short, not_long, not_short, kind, text = cells[-OPTION_CELLS:]
        names = (_stacked(long, not_long), _stacked(short, not_short))
        super().add_row(*front, *names, kind, text, **how)
        for column in self.columns[: len(front) + len(names)]:
            column.no_wrap = True


def _stacked(*cells: Text) -> Text:
    """Every name of these cells on a line of its own, coloured as Typer did."""
    names = [name for cell in cells if cell for name in cell.split(",")]
    return Text("\n").join(names)


@contextmanager
def whole_names() -> Iterator[None]:
    """Help that is printed within shows every name in full."""
    pages: Any = rich_utils  # Typer offers no other way in than its module's own Table
    before = pages.Table
    pages.Table = OptionTable
    try:
        yield
    finally:
        pages.Table = before
