"""The terminal app: three screens over the same questions that the command line asks.

It only reads, on threads of its own, and pages in SQL. Needs the `tui` extra.
"""

from kclab.tui.app import KclabApp
from kclab.tui.hangup import end_with_terminal

__all__ = ["KclabApp", "end_with_terminal"]
