"""Conditions that listings of workloads and captures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class By(StrEnum):
    """Which time of a capture `--since` and `--until` mean."""

    CAPTURED = "captured"
    """When the engine computed it."""
    ARRIVED = "arrived"
    """When it came into this store."""


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """Which captures; a field left alone filters nothing."""

    definitions: Sequence[str] = ()
    """Globs, any of which may fit the definition's name."""
    run_id: int | None = None
    since_us: int | None = None
    until_us: int | None = None
    """Exclusive."""
    by: By = By.CAPTURED
    limit: int | None = None

    @property
    def on_captures(self) -> bool:
        """Whether it asks anything of a capture, beyond its definition."""
        return (self.run_id, self.since_us, self.until_us) != (None, None, None)


def definition_conditions(wanted: CaptureFilter) -> tuple[list[str], list[Any]]:
    """SQL conditions on `d`, a definition, with their values."""
    if not wanted.definitions:
        return [], []
    globs = " OR ".join("d.name GLOB ?" for _ in wanted.definitions)
    return [f"({globs})"], list(wanted.definitions)


def capture_conditions(wanted: CaptureFilter) -> tuple[list[str], list[Any]]:
    """SQL conditions on `c`, a capture, with their values."""
    time = f"c.{wanted.by.value}_us"
    asked = (
        ("c.run_id = ?", wanted.run_id),
        (f"{time} >= ?", wanted.since_us),
        (f"{time} < ?", wanted.until_us),
    )
    parts = [(sql, value) for sql, value in asked if value is not None]
    return [sql for sql, _ in parts], [value for _, value in parts]


def where(parts: Sequence[str]) -> str:
    """A WHERE clause of these conditions, or nothing."""
    return f"WHERE {' AND '.join(parts)}" if parts else ""
