"""The filter bar of the Runs screen: five words, completed as far as they are clear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.timer import Timer
from textual.widgets import Input

from kclab.core.errors import BadUsage
from kclab.core.when import parse_when
from kclab.db.queries.runs import RunFilter

STATUSES = ("running", "passed", "failed", "empty", "error", "interrupted", "stale")
SINCE = ("today", "yesterday", "1h", "24h", "7d", "30d")

NAMES = ("command", "status", "tag", "since", "text")

PAUSE_S = 0.2
"""How long after the last key a filter takes effect."""


def filter_of(words: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> RunFilter:
    """The filter that five words mean; beginnings stand for what begins so.

    `known` has the `commands` and `tags` that occur. Raises BadUsage.
    """
    since = words["since"].strip()
    return RunFilter(
        commands=_begun("command", words["command"], known["commands"]),
        statuses=_begun("status", words["status"], STATUSES),
        tags=tuple(_only("tag", word, known["tags"]) for word in words["tag"].split()),
        since_us=parse_when(since) if since else None,
        text=words["text"].strip(),
    )


def _begun(name: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = text.replace(",", " ").split()
    return tuple(one for word in words for one in _beginning(name, word, known))


def _beginning(name: str, word: str, known: Sequence[str]) -> list[str]:
    found = [word] if word in known else [one for one in known if one.startswith(word)]
    if not found:
        raise BadUsage(f'no {name} begins with "{word}"; there are {_some(known)}.')
    return found


def _only(name: str, word: str, known: Sequence[str]) -> str:
    found = _beginning(name, word, known)
    if len(found) > 1:
        raise BadUsage(f'several {name}s begin with "{word}": {_some(found)}.')
    return found[0]


def _some(words: Sequence[str]) -> str:
    return ", ".join([*words[:6], *(["…"] if len(words) > 6 else [])]) or "none"


class FilterBar(Horizontal):
    """Five labelled inputs; posts `Changed` a moment after the last key."""

    DEFAULT_CSS = """
    FilterBar { height: 1; padding: 0 1; background: $surface; }
    FilterBar Input { width: 1fr; background: $boost; padding: 0; margin: 0 1 0 0; }
    FilterBar Input:focus { background: $primary-muted; color: $text; }
    FilterBar #text { width: 2fr; margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,down", "screen.leave_filter", "To the list"),
        Binding("ctrl+x", "screen.clear_filter", "Clear"),
    ]

    @dataclass
    class Changed(Message):
        """Other words are in the bar."""

        words: Mapping[str, str]

    def __init__(self) -> None:
        super().__init__()
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """An input for each word."""
        for name in NAMES:
            box = Input(id=name, placeholder=name, compact=True, select_on_focus=False)
            box.cursor_blink = False  # a blinking cursor is traffic on a slow line
            yield box

    def complete(self, known: Mapping[str, Iterable[str]]) -> None:
        """Offer what occurs in the store."""
        choices = {
            "command": known["commands"],
            "status": STATUSES,
            "tag": known["tags"],
            "since": SINCE,
        }
        for name, words in choices.items():
            self.query_one(f"#{name}", Input).suggester = SuggestFromList(words)

    @property
    def words(self) -> dict[str, str]:
        """What stands in each input."""
        return {box.id or "": box.value for box in self.query(Input)}

    def fill(self, **words: str) -> None:
        """Put these words in, and nothing into the other inputs."""
        for box in self.query(Input):
            box.value = words.get(box.id or "", "")

    @on(Input.Changed)
    def _typed(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PAUSE_S, self._tell)

    @on(Input.Submitted)
    async def _submitted(self) -> None:
        self._tell()
        await self.run_action("screen.leave_filter")

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self.post_message(self.Changed(self.words))
