"""The lines at the top and bottom of every screen."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Label, Static

PLACES = (("runs", "1", "Runs"), ("replay", "2", "Replay"), ("fc2", "3", "FC2"))
"""(mode, key, name) of the app's screens."""


class TopBar(Horizontal):
    """Where one is: the screens with their keys, and which database is shown."""

    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; background: $panel; }
    TopBar Label { padding: 0 1; }
    TopBar .name { text-style: bold; color: $primary; }
    TopBar .place { color: $text-muted; }
    TopBar .here { background: $primary; color: $text; text-style: bold; }
    TopBar #database { width: 1fr; text-align: right; color: $text-muted; }
    """

    def __init__(self, here: str, database: Path) -> None:
        super().__init__()
        self._here, self._database = here, database

    def compose(self) -> ComposeResult:
        """The tabs and the database."""
        yield Label("kclab", classes="name")
        for mode, key, name in PLACES:
            state = "here" if mode == self._here else "place"
            yield Label(f"[@click=app.go('{mode}')]{key} {name}[/]", classes=state)
        yield Label(_told(self._database, 36), id="database", markup=False)


class StatusLine(Static):
    """One line above the keys: how many, what is filtered, what went wrong."""

    DEFAULT_CSS = """
    StatusLine { height: 1; padding: 0 1; background: $surface;
                 color: $text-muted; }
    StatusLine.problem { color: $text-error; text-style: bold; }
    """

    def tell(self, text: str, *, problem: bool = False) -> None:
        """Show a sentence."""
        self.set_class(problem, "problem")
        self.update(Text(text, no_wrap=True, overflow="ellipsis"))


def _told(path: Path, width: int) -> str:
    """A path as short as it says all: from here, from home, or its end."""
    text = str(path)
    for folder, name in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(folder):
            text = f"{name}{path.relative_to(folder)}"
            break
    return text if len(text) <= width else f"…{text[1 - width :]}"
