"""Plots of timings in characters: samples as strips, samples over rounds.

Every plot is a list of lines exactly as wide as asked; time is in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.text import Text

from kclab.cli.plots import LEVELS
from kclab.core.stats import Sample, median, quantile

ARMS = ("A", "B0", "B")
"""In the order that they are drawn: accepted baseline, heuristic's choice, candidate."""

ARM_STYLES = {"A": "blue", "B0": "yellow", "B": "green"}

DENSITY = "·•●█"
"""One sample in a cell, then a growing share of the fullest cell."""

LABEL = 4
TAIL = 18
"""Cells before a strip for the arm's name, and after it for its median."""

MIN_STRIP = 16


def strip_plot(samples: Sequence[Sample], width: int) -> list[Text]:
    """Each arm a row, each sample a dot at its time, the median below it, and an axis.

    The axis leaves out the slowest two in a hundred of each arm; how many lie beyond it stands at
    its end.
    """
    times = {arm: [s.ms for s in samples if s.arm == arm] for arm in ARMS}
    times = {arm: values for arm, values in times.items() if values}
    if not times:
        return [Text("no samples are stored with this result", style="dim")]
    cells = max(width - LABEL - TAIL, MIN_STRIP)
    low = min(min(values) for values in times.values())
    high = max(quantile(values, 0.98) for values in times.values())
    span = (high - low) or low * 0.01 or 1.0
    low, high = low - 0.03 * span, high + 0.03 * span
    lines = []
    for arm, values in times.items():
        lines += _strip(arm, values, low, high, cells)
    return [*lines, _axis(low, high, cells)]


def _strip(arm: str, values: Sequence[float], low: float, high: float, cells: int) -> list[Text]:
    counts = [0] * cells
    beyond = 0
    for ms in values:
        if ms > high:
            beyond += 1
        else:
            counts[_cell(ms, low, high, cells)] += 1
    fullest = max(counts)
    dots = "".join(_dot(count, fullest) for count in counts)
    style = ARM_STYLES[arm]
    more = f"+{beyond} " if beyond else ""
    tail = f" {median(values):.4g} ms {more}"
    first = Text.assemble((f"{arm:<{LABEL}}", f"bold {style}"), (dots, style), (tail, "bold"))
    marks = [" "] * cells
    left, right = (_cell(quantile(values, q), low, high, cells) for q in (0.25, 0.75))
    marks[left : right + 1] = "─" * (right - left + 1)
    marks[_cell(median(values), low, high, cells)] = "┻"
    return [first, Text(" " * LABEL + "".join(marks).rstrip(), style="dim")]


def _dot(count: int, fullest: int) -> str:
    if count <= 1:
        return DENSITY[0] if count else " "
    return DENSITY[min(1 + (count - 1) * 3 // max(fullest, 3), 3)]


def _cell(ms: float, low: float, high: float, cells: int) -> int:
    return max(0, min(int((ms - low) / (high - low) * cells), cells - 1))


def _axis(low: float, high: float, cells: int) -> Text:
    """Numbers under the strips: both ends and the middle."""
    digits = _digits(high - low)
    left, middle, right = (f"{ms:.{digits}f}" for ms in (low, (low + high) / 2, high))
    line = f"{left}{middle:^{max(cells - len(left) - len(right), 0)}}{right}"
    return Text(f"{'':<{LABEL}}{line} ms", style="dim")


def _digits(span: float) -> int:
    """Decimals that tell apart what is a fiftieth of the axis away."""
    digits = 0
    while span < 5 and digits < 6:
        span *= 10
        digits += 1
    return digits + 1


def round_plot(samples: Sequence[Sample], width: int) -> list[Text]:
    """Each arm's time over the rounds, a bar a round (or a few): what drifts shows as a slope.

    All arms share one scale, from the fastest to the slowest bar.
    """
    cells = max(width - LABEL - TAIL, MIN_STRIP)
    rounds = sorted({s.round for s in samples})
    if not rounds:
        return []
    cells = min(cells, len(rounds))
    bars = {arm: _by_round(samples, arm, rounds, cells) for arm in ARMS}
    bars = {arm: values for arm, values in bars.items() if any(v is not None for v in values)}
    known = [ms for values in bars.values() for ms in values if ms is not None]
    low, high = min(known), max(known)
    lines = []
    for arm, values in bars.items():
        drawn = "".join(_level(ms, low, high) for ms in values)
        style = ARM_STYLES[arm]
        lines.append(Text.assemble((f"{arm:<{LABEL}}", f"bold {style}"), (drawn, style)))
    told = f"{low:.4g} ms ▁ to {high:.4g} ms █, {len(rounds)} rounds from left to right"
    return [*lines, Text(f"{'':<{LABEL}}{told}", style="dim")]


def _by_round(
    samples: Sequence[Sample], arm: str, rounds: Sequence[int], cells: int
) -> list[float | None]:
    place = {number: index * cells // len(rounds) for index, number in enumerate(rounds)}
    groups: list[list[float]] = [[] for _ in range(cells)]
    for sample in samples:
        if sample.arm == arm:
            groups[place[sample.round]].append(sample.ms)
    return [fmean(group) if group else None for group in groups]


def _level(ms: float | None, low: float, high: float) -> str:
    if ms is None:
        return " "
    return LEVELS[min(int((ms - low) / ((high - low) or 1) * len(LEVELS)), len(LEVELS) - 1)]
