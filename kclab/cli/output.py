"""How results reach the terminal: one table model, shown as a table, JSON or CSV.

Data goes to stdout, notes and progress to stderr. Columns keep raw values (microseconds, bytes,
None) for JSON and CSV; a column's `show` turns one into what a person reads in a table.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """How to print a table."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="table for people; json or csv for programs.")
]


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
    hidden: bool = False
    """In JSON and CSV only."""


STATUS_STYLES = {
    "passed": "green",
    "failed": "red",
    "error": "red",
    "stale": "yellow",
    "interrupted": "yellow",
    "empty": "yellow",
    "running": "cyan",
    "skipped": "dim",
}


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    form: Format,
    *,
    title: str | None = None,
    empty: str = "nothing to show.",
) -> None:
    """Print rows in the asked form; an empty table says `empty` on stderr."""
    if form is Format.JSON:
        json.dump([dict(row) for row in rows], sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout)
        writer.writerow([column.key for column in columns])
        writer.writerows([[row[column.key] for column in columns] for row in rows])
    elif rows:
        _print_table(rows, [c for c in columns if not c.hidden], title)
    else:
        note(empty)


def _print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], title: str | None
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(
            column.heading or column.key,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis" if column.wide else "fold",
            min_width=8 if column.wide else None,
        )
    for row in rows:
        cells = [_cell(column, row[column.key]) for column in columns]
        table.add_row(*[Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in cells])
    Console(highlight=False).print(table)


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return "-"
    return column.show(value) if column.show else str(value)


def print_fields(fields: Mapping[str, Any], form: Format) -> None:
    """Print one record: `name  value` lines, or one JSON object (csv: name,value rows)."""
    if form is Format.JSON:
        json.dump(dict(fields), sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")
        return
    if form is Format.CSV:
        csv.writer(sys.stdout).writerows(fields.items())
        return
    from rich.console import Console

    width = max((len(name) for name in fields), default=0)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in fields.items():
        console.print(f"[bold]{name:<{width}}[/]  ", end="")
        console.print("-" if value is None else str(value), markup=False)


def note(message: str) -> None:
    """A line for the person, on stderr."""
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
