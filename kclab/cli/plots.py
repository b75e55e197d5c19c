"""Plots that fit into a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """A bar for each value, the smallest lowest; a gap where there is none.

    >>> sparkline([1.0, 2.0, None, 3.0])
    '▁▅ █'
    """
    known = [value for value in values if value is not None]
    if not known:
        return " " * len(values)
    low, span = min(known), max(known) - min(known)
    return "".join(" " if v is None else _level(v, low, span) for v in values)


def _level(value: float, low: float, span: float) -> str:
    """The middle where all are equal: a flat line is not a low one."""
    share = (value - low) / span if span else 0.5
    return LEVELS[min(int(share * len(LEVELS)), len(LEVELS) - 1)]


def interval_bar(low: float, middle: float, high: float, reach: float, width: int = 21) -> str:
    """`  ├─●─┤  ┊`: a ratio and its interval on the axis 1 - reach … 1 + reach, ┊ at 1.

    What lies beyond the axis ends in an arrow.
    """
    cells = [" "] * width
    cells[width // 2] = "┊"
    first, last = (_cell(end, reach, width) for end in (low, high))
    cells[first : last + 1] = "─" * (last - first + 1)
    cells[first] = "◂" if low < 1 - reach else "├"
    cells[last] = "▸" if high > 1 + reach else "┤"
    cells[_cell(middle, reach, width)] = "●"
    return "".join(cells)


def _cell(ratio: float, reach: float, width: int) -> int:
    place = (ratio - (1 - reach)) / (2 * reach) * width
    return max(0, min(int(place), width - 1))
