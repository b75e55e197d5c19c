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


def interval_bar(
    low: float | None,
    middle: float | None,
    high: float | None,
    bounds: tuple[float, float],
    width: int = 21,
) -> str:
    """`  ├─●─┤  ┊`: a ratio and its interval on the axis of `bounds`, ┊ where the ratio is 1.

    What lies beyond the axis ends in an arrow. A ratio without an interval is a point.

    >>> interval_bar(0.945, 0.965, 0.985, (0.9, 1.1), 20)
    '    ├─●─┤ ┊         '
    """
    cells = [" "] * width
    if bounds[0] <= 1 <= bounds[1]:
        cells[_cell(1, bounds, width)] = "┊"
    if low is not None and high is not None:
        first, last = (_cell(end, bounds, width) for end in (low, high))
        cells[first : last + 1] = "─" * (last - first + 1)
        cells[first] = "◂" if low < bounds[0] else "├"
        cells[last] = "▸" if high > bounds[1] else "┤"
    if middle is not None:
        cells[_cell(middle, bounds, width)] = "●"
    return "".join(cells)


def _cell(ratio: float, bounds: tuple[float, float], width: int) -> int:
    place = (ratio - bounds[0]) / (bounds[1] - bounds[0]) * width
    # The sum of a share and its complement may fall just short of a cell's edge.
    return max(0, min(int(place + 1e-9), width - 1))
