"""Laying a table out in a terminal: what is cut, what wraps, what becomes a block of lines.

`wide`, `middle` and `first` columns are cut, `wrap` columns go on over more lines, `spare` columns
are left out, and where even that is too broad each row becomes a block of lines. A pipe or file
has no width unless COLUMNS says so. Colour follows NO_COLOR, FORCE_COLOR, TERM and whether it is
a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the row's key, the heading, and how a person reads its values."""

    key: str
    heading: str | None = None
    """The key itself unless given."""
    show: Callable[[Any], str] | None = None
    right: bool = False
    wide: bool = False
    """May be cut with an ellipsis on a narrow terminal; the others keep their width."""
    middle: bool = False
    """Like `wide`, but cut in the middle, for names: both ends tell something."""
    first: bool = False
    """Cut before the other columns, down to MIN_FIRST, and its end kept rather than its start: for
    definitions, whose names begin alike."""
    wrap: bool = False
    """May go on over more lines on a narrow terminal: for sentences."""
    sparse: bool = False
    """Left out of a table where no row has a value."""
    spare: int = 0
    """Above 0: left out where a terminal is too narrow, the highest first."""
    hidden: bool = False
    """In JSON and CSV only, unless `--columns` names it."""

    @property
    def title(self) -> str:
        """What stands above the column."""
        return self.heading or self.key


STATUS_STYLES = {
    "passed": "green",
    "better": "green",
    "identical": "green",
    "ok": "green",
    "FAST": "green",
    "failed": "red",
    "error": "red",
    "worse": "red",
    "broken": "red",
    "damaged": "red",
    "missing": "red",
    "SLOW": "red",
    "outputs differ": "red",
    "stale": "yellow",
    "interrupted": "yellow",
    "empty": "yellow",
    "inputs differ": "yellow",
    "changed": "yellow",
    "vanished": "yellow",
    "warning": "yellow",
    "UNDECIDED": "yellow",
    "running": "cyan",
    "appeared": "cyan",
    "skipped": "dim",
    "absent": "dim",
    "same": "dim",
}
"""A cell that is exactly one of these words is coloured."""

GAP = 2
"""Spaces between columns; Rich's own divider is one of them."""

MIN_WIDE = 8
"""Characters that a column keeps however narrow the terminal is."""

MIN_FIRST = 13
"""Characters that a `first` column keeps while others can be cut: `…n12288_k4096`."""


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    title: str | None,
    *,
    stderr: bool = False,
) -> None:
    """Print rows as a table that fits; columns that are not for tables are left out."""
    out = console(stderr=stderr)
    columns, cells, widths = _layout(rows, columns, out.width)
    if title:
        out.print(title, style="bold", markup=False)
    if widths is None:
        _print_blocks(out, columns, cells)
    else:
        _print_grid(out, columns, cells, widths)


def _layout(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], room: int
) -> tuple[list[Column], list[list[str]], list[int] | None]:
    """What is shown, its cells and widths; the widths are None, and all columns there, where not
    even a table without its spare columns fits."""
    every = [column for column in columns if _in_table(column, rows)]
    columns = every
    while True:
        cells = [[_cell(column, row[column.key]) for column in columns] for row in rows]
        widths = _fitted(columns, cells, room)
        if widths is not None:
            return columns, cells, widths
        last = max(columns, key=lambda column: column.spare)
        if not last.spare:
            return every, [[_cell(c, row[c.key]) for c in every] for row in rows], None
        columns = [column for column in columns if column is not last]


def _in_table(column: Column, rows: Sequence[Mapping[str, Any]]) -> bool:
    if column.hidden or not column.sparse:
        return not column.hidden
    return any(row[column.key] not in (None, [], "") for row in rows)


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return "-"
    text = column.show(value) if column.show else str(value)
    return printable(text) if column.wrap else printable(" ".join(text.split("\n")))


def _fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int
) -> list[int] | None:
    """Each column's width so that all fit in `room`; None where they cannot."""
    from rich.cells import cell_len

    widths = [
        max(cell_len(column.title), *(cell_len(line) for text in column_cells
                                       for line in text.split("\n")))
        for column, column_cells in zip(columns, zip(*cells, strict=True), strict=True)
    ]  # fmt: skip
    excess = sum(widths) + GAP * (len(widths) - 1) - room
    first = [i for i, c in enumerate(columns) if c.first]
    flexible = [i for i, c in enumerate(columns) if c.wide or c.middle or c.wrap or c.first]
    excess = _shrink(widths, first, MIN_FIRST, excess)
    return widths if _shrink(widths, flexible, MIN_WIDE, excess) <= 0 else None


def _shrink(widths: list[int], which: Sequence[int], least: int, excess: int) -> int:
    """Take from the broadest of some columns, in place; returns the excess that is left."""
    while excess > 0:
        broadest = max(which, key=widths.__getitem__, default=None)
        if broadest is None or widths[broadest] <= least:
            break
        widths[broadest] -= 1
        excess -= 1
    return excess


def _print_grid(
    out: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> None:
    table = _grid(columns, cells, widths)
    with out.capture() as captured:
        out.print(table, soft_wrap=False, width=sum(widths) + GAP * len(widths))
    for line in captured.get().splitlines():
        out.file.write(f"{line.rstrip()}\n")


def _grid(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            width=width,
        )
    for row in cells:
        shown = [
            _cut(column, cell, width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        table.add_row(*[Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in shown])
    return table


def laid_out(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], room: int
) -> list[RenderableType]:
    """What `print_table` prints in a terminal `room` characters wide, for other places."""
    from rich.text import Text

    columns, cells, widths = _layout(rows, columns, room)
    if widths is not None:
        return [_grid(columns, cells, widths)]
    titles = [column.title for column in columns]
    lines: list[RenderableType] = []
    for row in cells:
        lines += [*record_lines(dict(zip(titles, row, strict=True))), Text()]
    return lines[:-1]


def _cut(column: Column, text: str, width: int) -> str:
    if len(text) <= width or not (column.middle or column.first):
        return text
    head = 0 if column.first else width // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _print_blocks(out: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    for number, row in enumerate(cells):
        if number:
            out.print()
        print_record(out, dict(zip((c.title for c in columns), row, strict=True)))


def print_record(out: Console, fields: Mapping[str, Any]) -> None:
    """Print `name  value` lines, names aligned and further lines of a value indented."""
    for line in record_lines(fields):
        out.print(line)


def record_lines(fields: Mapping[str, Any]) -> list[Text]:
    """The lines of `print_record`."""
    from rich.text import Text

    width = max((len(name) for name in fields), default=0)
    lines = []
    for name, value in fields.items():
        text = "-" if value is None else printable(str(value))
        indented = text.replace("\n", f"\n{' ' * (width + GAP)}")
        style = STATUS_STYLES.get(text.partition(" (")[0], "")
        lines.append(Text.assemble((f"{name:<{width}}  ", "bold"), (indented, style)))
    return lines


def printable(text: str) -> str:
    """Text that cannot steer the terminal: control characters and lone surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "  " if character == "\t" else character.encode("unicode_escape").decode()


def console(*, stderr: bool = False) -> Console:
    """A Rich console on stdout (or stderr) that knows how broad it may write."""
    from rich.console import Console

    width = _width(sys.stderr if stderr else sys.stdout)
    return Console(highlight=False, soft_wrap=True, width=width, stderr=stderr)


def _width(stream: TextIO) -> int:
    if os.environ.get("COLUMNS", "").isdigit() or stream.isatty():
        return max(shutil.get_terminal_size().columns, 20)
    return 100_000
