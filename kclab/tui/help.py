"""Help for the screen that is open: what it shows, and every key that does something there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

Keys = Sequence[tuple[str, str]]
"""(keys, what they do)."""

EVERYWHERE: Keys = (
    ("1 2 3", "Runs, Replay, FC2"),
    ("ctrl+p", "command palette: go anywhere, open any run"),
    ("?", "this help"),
    ("esc", "back"),
    ("q", "quit"),
)
IN_LISTS: Keys = (
    ("↑ ↓  k j", "move"),
    ("page up, page down", "by screens"),
    ("home end  g G", "first, last"),
    ("enter", "open"),
)


class HelpScreen(ModalScreen[None]):
    """A box over the screen."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 100%;
        border: round $primary; padding: 0 1; background: $surface; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "dismiss", "Close"),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(16)", show=False),
        Binding("pageup", "scroll(-16)", show=False),
    ]

    def __init__(self, title: str, about: str, keys: Keys, *, lists: bool) -> None:
        super().__init__()
        self._title, self._about, self._keys, self._lists = title, about, keys, lists

    def compose(self) -> ComposeResult:
        """Words, then keys."""
        parts: list[RenderableType] = [Text(self._about), *_keys("here", self._keys)]
        if self._lists:
            parts += _keys("in lists", IN_LISTS)
        parts += _keys("everywhere", EVERYWHERE)
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "↓ more · esc closes"
            yield Static(Group(*parts))

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def _keys(title: str, keys: Keys) -> Iterable[RenderableType]:
    if keys:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=20)
        table.add_column()
        for names, meaning in keys:
            table.add_row(Text(names, style="bold"), meaning)
        yield from (Text(), Text(title, style="bold underline"), table)
