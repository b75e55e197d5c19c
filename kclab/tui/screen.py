"""What all screens have in common: bars, help, asking the database, going along with changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from kclab.core.errors import KclabError
from kclab.tui.bars import StatusLine, TopBar
from kclab.tui.reader import Reader

if TYPE_CHECKING:
    from kclab.tui.app import KclabApp

Answer = TypeVar("Answer")


class LabScreen(Screen[object]):
    """A screen: its `body` between the top bar and the keys."""

    PLACE: ClassVar[str] = "runs"
    """The mode that it belongs to."""
    ABOUT: ClassVar[str] = ""
    """What help says before it lists the keys."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "app.help", "Help", key_display="?"),
    ]

    @property
    def lab(self) -> KclabApp:
        """The app, by its own type."""
        return cast("KclabApp", self.app)

    @property
    def pages(self) -> Reader:
        """For what must come at once: pages of a listing."""
        return self.lab.pages

    def compose(self) -> ComposeResult:
        """Bars around the body."""
        yield TopBar(self.PLACE, self.lab.store.database)
        yield from self.body()
        yield StatusLine()
        yield Footer(show_command_palette=False)

    def body(self) -> Iterable[Widget]:
        """The screen's own widgets."""
        return ()

    def refresh_data(self) -> None:
        """The database changed; called at most once a second, and when the screen comes back."""

    def tell(self, text: str, *, problem: bool = False) -> None:
        """Put a sentence into the status line."""
        if self.is_mounted:
            self.query_one(StatusLine).tell(text, problem=problem)

    def failed(self, error: KclabError) -> None:
        """A question went wrong."""
        self.tell(str(error), problem=True)

    def asked(
        self,
        question: Callable[[sqlite3.Connection], Answer],
        then: Callable[[Answer], None],
        group: str = "page",
    ) -> None:
        """Ask what may take a while and go on with its answer; a newer question replaces it."""
        self.run_worker(self._asked(question, then), group=group, exclusive=True)

    async def _asked(
        self, question: Callable[[sqlite3.Connection], Answer], then: Callable[[Answer], None]
    ) -> None:
        try:
            answer = await self.lab.details.ask(question)
        except KclabError as error:
            self.failed(error)
            return
        if self.is_mounted:
            then(answer)

    def start(self, work: Coroutine[Any, Any, None], group: str) -> None:
        """Run something on the event loop; the newest of a group alone goes on."""
        self.run_worker(work, group=group, exclusive=True)
