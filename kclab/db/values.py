"""Python values as SQLite columns hold them: plain JSON, finite numbers, one row at a time."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from typing import Any


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    """Insert one row, column by column; returns its rowid."""
    marks = ", ".join("?" * len(values))
    cursor = connection.execute(
        f"INSERT INTO {table}({', '.join(values)}) VALUES ({marks})", tuple(values.values())
    )
    return int(cursor.lastrowid or 0)


def to_json(value: Any) -> str:
    """JSON text of a row's structured column; NaN and infinity become the words `nan`, `inf`.

    SQLite's JSON functions know no such numbers, and a receipt may hold one.
    """
    try:
        return _encode(value)
    except ValueError:
        return json.dumps(_spelled(value), default=_plain)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


_encode = json.JSONEncoder(allow_nan=False, default=_plain).encode
"""Made once: `json.dumps` with options makes an encoder at every call."""


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value


def finite(value: float | None) -> float | None:
    """NULL for NaN and infinity: as numbers they would sort first."""
    return float(value) if value is not None and math.isfinite(value) else None
