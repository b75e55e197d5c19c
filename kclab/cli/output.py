"""How results reach the terminal: one table model, shown as a table, JSON or CSV.

Data goes to stdout, notes and progress to stderr. Rows keep raw values; a column's `show` turns
one into what a person reads in a table. What programs get in JSON and CSV:

- a time twice: `started_us`, integer microseconds UTC, and `started`, ISO 8601 UTC ending in Z
  (`kclab.cli.show.dated` adds it);
- sizes in bytes, lengths of time in seconds or as the key says, uuids and digests whole;
- a missing value as null (CSV: an empty cell); lists and objects in CSV as JSON text.

`kclab.cli.table` lays tables out.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from kclab.cli.table import Column, console, print_record, print_table, printable
from kclab.core.errors import BadUsage

__all__ = [
    "Column",
    "Format",
    "FormatOption",
    "choose_columns",
    "console",
    "heading",
    "note",
    "note_rest",
    "only_columns",
    "print_fields",
    "print_json",
    "print_lines",
    "print_rows",
    "printable",
]


class Format(StrEnum):
    """How to print a table."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="table for people; json or csv for programs.")
]


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
        print_json([dict(row) for row in rows])
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows([[_csv_cell(row[c.key]) for c in columns] for row in rows])
    elif rows:
        print_table(rows, columns, title)
    else:
        note(empty)


def print_fields(fields: Mapping[str, Any], form: Format) -> None:
    """Print one record: `name  value` lines, or one JSON object (csv: name,value rows)."""
    if form is Format.JSON:
        print_json(dict(fields))
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([name, _csv_cell(value)] for name, value in fields.items())
    else:
        print_record(console(), fields)


def print_json(value: Any) -> None:
    """Print JSON; NaN and infinity, which JSON lacks, become null."""
    try:
        text = json.dumps(value, indent=2, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), indent=2, default=str, allow_nan=False)
    sys.stdout.write(f"{text}\n")


def heading(text: str) -> None:
    """A line above a part of a page that has several."""
    out = console()
    out.print()
    out.print(printable(text), style="bold", markup=False)


def print_lines(title: str, lines: Sequence[str]) -> None:
    """A headed part of a page that is plain sentences or commands; nothing for no lines."""
    if lines:
        heading(title)
        for line in lines:
            sys.stdout.write(f"{printable(line)}\n")


def note(message: str) -> None:
    """A line for the person, on stderr, after what stdout has so far."""
    sys.stdout.flush()
    sys.stderr.write(f"{printable(message)}\n")


def note_rest(shown: int, total: int, nouns: str) -> None:
    """Say on stderr that there is more than what was listed."""
    if total > shown:
        note(f"{shown:,} of {total:,} {nouns}; -n shows more.")


def choose_columns(columns: Sequence[Column], asked: str | None) -> list[Column]:
    """The columns that `--columns a,b` names, by key or heading, in that order; all for None.

    Raises BadUsage naming the choices.
    """
    if asked is None:
        return list(columns)
    known = {name: column for column in columns for name in (column.key, column.title)}
    chosen = []
    for name in filter(None, (word.strip() for word in asked.split(","))):
        if name not in known:
            choices = ", ".join(column.title for column in columns)
            raise BadUsage(f'--columns: no column "{name}"; there are {choices}.')
        chosen.append(replace(known[name], hidden=False, sparse=False))
    if not chosen:
        raise BadUsage("--columns names no column.")
    return chosen


def only_columns(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]
) -> list[dict[str, Any]]:
    """Rows with nothing but these columns' keys."""
    return [{column.key: row[column.key] for column in columns} for row in rows]


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict | list | tuple) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def print_some(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[Column],
    form: Format,
    limit: int,
    nouns: str,
    empty: str,
) -> None:
    """A person's table ends after `limit` rows and says so; a program's is whole."""
    shown = rows[:limit] if form is Format.TABLE else rows
    print_rows(shown, columns, form, empty=empty)
    note_rest(len(shown), len(rows), nouns)
