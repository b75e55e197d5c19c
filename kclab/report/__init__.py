"""The report: one self-contained page about a period of a store. Needs jinja2."""

from __future__ import annotations

from kclab.report.gather import Report, gather
from kclab.report.render import as_html, as_markdown

__all__ = ["Report", "as_html", "as_markdown", "gather"]
