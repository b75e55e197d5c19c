"""Drawings for the report: inline SVG without scripts, coloured by the page's own classes.

Every number is formatted here and every text goes through Markup, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kclab.core.stats import Sample, median, quantile

WIDTH, HEIGHT = 1080, 150
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 26
ARMS = ("A", "B0", "B")
LEAST_SPAN = 0.04
"""A history's axis spans 4 % at least."""
Bounds = tuple[float, float]


def bounds_of(values: Iterable[float | None], keep: float | None = 1.0) -> Bounds:
    """An axis that holds all finite values, and `keep`, with some air."""
    known = [v for v in (*values, keep) if v is not None and math.isfinite(v)]
    low, high = min(known), max(known)
    air = 0.06 * ((high - low) or abs(high) * 0.02 or 1.0)
    return low - air, high + air


def interval(row: Mapping[str, Any], bounds: Bounds, tone: str) -> Markup:
    """A ratio's confidence interval on a shared axis, with a line where nothing is gained.

    `row` has ratio, ratio_low and ratio_high.
    """
    width, middle = 130, 9
    if row["ratio"] is None:
        return Markup("")
    ends = [_at(row[n], bounds, 2, width - 2) for n in ("ratio_low", "ratio", "ratio_high")]
    low, at, high = (ends[1] if end is None else end for end in ends)
    one = _at(1.0, bounds, 2, width - 2)
    assert at is not None
    return _svg(
        width, 18, f"{gain(row['ratio'])}",
        Markup('<line class="one" x1="{0}" x2="{0}" y1="0" y2="18"/>').format(_n(one)),
        Markup('<line class="span {}" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(
            tone, _n(low), _n(high), y=middle
        ),
        Markup('<circle class="dot {}" cx="{}" cy="{}" r="3.5"/>').format(tone, _n(at), middle),
    )  # fmt: skip


def history(points: Sequence[Mapping[str, Any]]) -> Markup:
    """Ratios (times where there is no control) from the oldest to the newest, with intervals.

    Where a point's `changed` is not None, a dashed line stands before it, numbered from 1.
    """
    by_ratio = all(point["ratio"] is not None for point in points)
    names = ("ratio_low", "ratio", "ratio_high") if by_ratio else ("ms",)
    bounds = _at_least(bounds_of((p[n] for p in points for n in names), None), LEAST_SPAN)
    places = [_column(index, len(points)) for index in range(len(points))]
    drawn = [*_grid(bounds, by_ratio), *_changes(points, places)]
    path = []
    for x, point in zip(places, points, strict=True):
        y = _row(point["ratio" if by_ratio else "ms"], bounds)
        if y is None:
            continue
        path.append(f"{_n(x)},{_n(y)}")
        drawn += _point(x, y, point, bounds, by_ratio)
    line = Markup('<polyline class="line" points="{}"/>').format(" ".join(path))
    return _svg(WIDTH, HEIGHT, "history", line, *drawn)


def _at_least(bounds: Bounds, share: float) -> Bounds:
    """Bounds widened to a share of their middle: noise is not drawn as large as a change."""
    middle = (bounds[0] + bounds[1]) / 2
    half = max(bounds[1] - bounds[0], share * middle) / 2
    return middle - half, middle + half


def _grid(bounds: Bounds, by_ratio: bool) -> list[Markup]:
    marks = [bounds[0] + (bounds[1] - bounds[0]) * share for share in (0.06, 0.5, 0.94)]
    lines = [
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
            '<text class="label end" x="{}" y="{t}">{}</text>'
        ).format(
            LEFT, WIDTH - RIGHT, LEFT - 6,
            gain(mark) if by_ratio else f"{mark:.4g} ms",
            y=_n(_row(mark, bounds)), t=_n((_row(mark, bounds) or 0) + 4),
        )
        for mark in marks
    ]  # fmt: skip
    if by_ratio and bounds[0] <= 1 <= bounds[1]:
        one = Markup('<line class="one" x1="{}" x2="{}" y1="{y}" y2="{y}"/>')
        lines.append(one.format(LEFT, WIDTH - RIGHT, y=_n(_row(1.0, bounds))))
    return lines


def _changes(points: Sequence[Mapping[str, Any]], places: Sequence[float]) -> list[Markup]:
    found, number = [], 0
    for index, point in enumerate(points):
        if not point["changed"] or index == 0:
            continue
        number += 1
        x = (places[index - 1] + places[index]) / 2
        found.append(
            Markup(
                '<g class="change"><title>{}</title><line x1="{x}" x2="{x}" y1="{}" y2="{}"/>'
                '<text x="{x}" y="{}">{}</text></g>'
            ).format(point["changed"], TOP - 2, HEIGHT - BOTTOM, TOP - 4, number, x=_n(x))
        )
    return found


def _point(
    x: float, y: float, point: Mapping[str, Any], bounds: Bounds, by_ratio: bool
) -> list[Markup]:
    tone = tone_of(point["verdict"])
    drawn = []
    low, high = (_row(point[n], bounds) if by_ratio else None for n in ("ratio_low", "ratio_high"))
    if low is not None and high is not None:
        bar = Markup('<line class="span {}" x1="{x}" x2="{x}" y1="{}" y2="{}"/>')
        drawn.append(bar.format(tone, _n(low), _n(high), x=_n(x)))
    told = f"{gain(point['ratio'])} " if by_ratio else f"{point['ms']:.4g} ms "
    dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>')
    return [*drawn, dot.format(tone, _n(x), _n(y), f"{told}{point['verdict'] or ''}")]


def strips(samples: Sequence[Sample]) -> Markup:
    """Each arm a row, each timed execution a dot, a bar over half of them, a line at the median.

    The axis leaves out the slowest two in a hundred of each arm.
    """
    times = {arm: [s.ms for s in samples if s.arm == arm] for arm in ARMS}
    times = {arm: values for arm, values in times.items() if values}
    if not times:
        return Markup("")
    ends = [v for values in times.values() for v in (min(values), quantile(values, 0.98))]
    bounds = bounds_of(ends, None)
    height = 30 * len(times) + 22
    rows = [_strip(arm, values, bounds, 30 * n) for n, (arm, values) in enumerate(times.items())]
    label = Markup('<text class="label {}" x="{}" y="{}">{:.4g} ms</text>')
    axis = [
        label.format("", LEFT, height - 6, bounds[0]),
        label.format("end", WIDTH - RIGHT, height - 6, bounds[1]),
    ]
    return _svg(WIDTH, height, "samples", *rows, *axis)


def _strip(arm: str, values: Sequence[float], bounds: Bounds, top: int) -> Markup:
    shown = [v for v in values if v <= bounds[1]]
    step = -(-len(shown) // 400)
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="1.8"/>').format(
            # Spread over the row by the golden ratio, so that equal times stay apart.
            _n(_at(ms, bounds, LEFT, WIDTH - RIGHT)), _n(top + 7 + 16 * (index * 0.618034 % 1))
        )
        for index, ms in enumerate(shown[::step])
    )  # fmt: skip
    quartiles = (_at(quantile(values, q), bounds, LEFT, WIDTH - RIGHT) for q in (0.25, 0.5, 0.75))
    low, middle, high = (_n(x) for x in quartiles)
    return Markup(
        '<g class="arm arm{}"><title>{}: median {:.4g} ms of {}</title>'
        '<text class="label end" x="{}" y="{}">{}</text>'
        '<rect x="{}" y="{}" width="{}" height="20"/>{}'
        '<line x1="{m}" x2="{m}" y1="{}" y2="{}"/></g>'
    ).format(
        arm, arm, median(values), len(values), LEFT - 10, top + 19, arm, low, top + 5,
        _n(float(high) - float(low)), dots, top + 3, top + 27, m=middle,
    )  # fmt: skip


def tone_of(verdict: str | None) -> str:
    """The class that colours a verdict."""
    tones = {"FAST": "good", "SLOW": "bad", "SAME": "calm", "passed": "good", "failed": "bad",
             "error": "bad"}  # fmt: skip
    return tones.get(verdict or "", "open")


def gain(ratio: float) -> str:
    """`+8.6 %` for a ratio of 1.086, with two digits where there is little; `2.50x` from 2 on."""
    if ratio >= 2:
        return f"{ratio:.2f}x"
    share = (ratio - 1) * 100
    return f"{share:+.2f} %" if abs(share) < 1 else f"{share:+.1f} %"


def _svg(width: int, height: int, about: str, *parts: Markup) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{}">{}</svg>'
    ).format(about, Markup("").join(parts), w=width, h=height)


def _at(value: float | None, bounds: Bounds, left: float, right: float) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    share = (value - bounds[0]) / (bounds[1] - bounds[0])
    return left + max(0.0, min(share, 1.0)) * (right - left)


def _row(value: float | None, bounds: Bounds) -> float | None:
    return _at(value, bounds, HEIGHT - BOTTOM, TOP + 6)


def _column(index: int, count: int) -> float:
    return LEFT + 14 + (WIDTH - RIGHT - LEFT - 28) * (index / (count - 1) if count > 1 else 0.5)


def _n(value: float | None) -> str:
    return "0" if value is None else f"{value:.1f}"
