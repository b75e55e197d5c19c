"""Reading JSON Lines strictly: each record or fault has a file and a line number.

Lines end at the byte `\\n` and nowhere else (`str.splitlines` would cut a prompt at U+2028). A last
line that stops in the middle of a record is what a killed writer leaves behind: a warning, while
any other unreadable line is a fault. Nothing is ever rewritten.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOM = b"\xef\xbb\xbf"
CUT_NUMBER = re.compile(r"\.|[eE][+-]?")
WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file."""

    value: dict[str, Any]
    number: int
    """Line number, from 1."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a JSON object."""

    number: int
    reason: str


@dataclass(slots=True)
class JsonLines:
    """What one file holds."""

    path: Path
    records: list[Record] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    torn: BadLine | None = None
    """The last line, when its writer was stopped in the middle of it."""


def read_jsonl(path: Path) -> JsonLines:
    """Every line of a file, sorted into records, faults and a torn end; blank lines are skipped."""
    found = JsonLines(path)
    lines = path.read_bytes().removeprefix(BOM).split(b"\n")
    last = max((i for i, line in enumerate(lines, 1) if line.strip()), default=0)
    for number, line in enumerate(lines[:last], 1):
        if not line.strip():
            continue
        outcome = _parse(line, number)
        if isinstance(outcome, Record):
            found.records.append(outcome)
        elif number == last and _stops_midway(line):
            found.torn = outcome
        else:
            found.bad.append(outcome)
    return found


def _parse(line: bytes, number: int) -> Record | BadLine:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return BadLine(number, _describe(line, error))
    if not isinstance(value, dict):
        return BadLine(number, f"a JSON {type(value).__name__}, not an object")
    return Record(value, number)


def _describe(line: bytes, error: Exception) -> str:
    zeros = line.count(0)
    if zeros:
        return f"damaged, {zeros} NUL bytes (a crash left the block unwritten)"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start})"
    return f"not JSON ({error})"


def _stops_midway(line: bytes) -> bool:
    """Whether more text could still complete the line: it begins an object and ends inside it."""
    if not line.lstrip().startswith(b"{") or b"\0" in line:
        return False
    text = line.decode("utf-8", errors="ignore").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # json.loads reports a cut string at its quote, a cut word or escape at its own start.
        if error.msg.startswith("Unterminated string"):
            return True
        rest = text[error.pos :]
        if error.msg.startswith("Invalid \\u"):
            return len(rest) < len("\\uXXXX")
        midway = CUT_NUMBER.fullmatch(rest) or any(word.startswith(rest) for word in WORDS)
        return error.msg != "Extra data" and bool(midway)
    except RecursionError:
        return False
    return True
