"""A report as HTML or Markdown. Every value is escaped for what it is written into."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kclab.cli.fc2_show import with_text
from kclab.cli.run_compare import told_value
from kclab.cli.show import short, short_run, show_axes, show_ms, show_place
from kclab.core.stats import Interval
from kclab.core.units import format_bytes, format_duration
from kclab.core.when import current_us, describe_instant, local_time
from kclab.report import svg
from kclab.report.gather import POINTS_SHOWN, RUNS_SHOWN, SERIES_SHOWN, Report

NOTHING = "-"
"""Stands where there is no value."""

TEMPLATES = Path(__file__).parent / "templates"


def as_html(report: Report, store: str) -> str:
    """The page; `store` is the name that it is headed with. No script, no network."""
    return _render("report.html.j2", report, store, autoescape=True)


def as_markdown(report: Report, store: str) -> str:
    """The same in short, for a pull request."""
    text = _render("report.md.j2", report, store, autoescape=False)
    return re.sub(r"\n{3,}", "\n\n", text)


def _render(template: str, report: Report, store: str, *, autoescape: bool) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize if autoescape else escape_markdown,
    )
    environment.filters |= {
        "axes": show_axes,
        "bytes": format_bytes,
        "code": code,
        "day": lambda us: f"{local_time(us):%Y-%m-%d %H:%M}",
        "duration": lambda us: format_duration(us / 1e6),
        "gain": svg.gain,
        "ms": show_ms,
        "number": lambda value: f"{value:.3g}",
        "place": show_place,
        "share": lambda share: f"{share * 100:.2f} %",
        "run": short_run,
        "short": short,
        "told": told_value,
        "tone": svg.tone_of,
    }
    return environment.get_template(template).render(_facts(report, store))


def _facts(report: Report, store: str) -> dict[str, Any]:
    best = [with_text(row) for row in report.best]
    names = ("ratio_low", "ratio", "ratio_high")
    return {
        "report": report,
        "store": store,
        "svg": svg,
        "written": describe_instant(current_us()),
        "since": report.period.since_us,
        "until": report.period.until_us,
        "best": best,
        "axis": svg.bounds_of(row[name] for row in best for name in names),
        "drawn": len(report.samples),
        "drawable": len({row["result_id"] for row in best if not row["is_control"]}),
        "shown_runs": report.runs[:RUNS_SHOWN],
        "histories": report.histories[:SERIES_SHOWN],
        "points_shown": POINTS_SHOWN,
        "told_interval": told_interval,
    }


def told_interval(ratio: Interval) -> str:
    """`-3.1 % (-3.4 % … -2.8 %)`; without bounds where there are none."""
    middle = svg.gain(ratio.estimate)
    if not ratio.coverage:
        return middle
    return f"{middle} ({svg.gain(ratio.low)} … {svg.gain(ratio.high)})"


def _finalize(value: Any) -> Any:
    return NOTHING if value is None else value


_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")


def escape_markdown(value: Any) -> Any:
    """A value as Markdown text: nothing in it formats, links, mentions or breaks a table."""
    if isinstance(value, Markup):
        return value
    text = NOTHING if value is None else " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace("@", "&#64;")


def code(value: Any) -> Markup:
    """A value as Markdown code."""
    text = NOTHING if value is None else " ".join(str(value).split())
    return Markup("`{}`").format(Markup(text.replace("`", "'").replace("|", "\\|")))
