"""The app: three screens, three readers, and one look a second whether anything changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.terminal_theme import TerminalTheme
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen

from kclab.core.errors import KclabError
from kclab.db.store import Store
from kclab.tui.help import HelpScreen
from kclab.tui.palette import LabCommands, RunCommands
from kclab.tui.reader import Reader, data_version
from kclab.tui.runs import RunsScreen
from kclab.tui.screen import LabScreen
from kclab.tui.table import RowTable

POLL_S = 1.0
"""Between two looks at `PRAGMA data_version`."""

LOOK_AGAIN_S = 10.0
"""After so long without a change it reads all the same: a run that died writes nothing."""

PALETTE = TerminalTheme(
    (18, 18, 18),
    (224, 224, 224),
    [(64, 64, 64), (255, 138, 138), (126, 211, 98), (255, 190, 92), (110, 168, 255),
     (214, 140, 255), (92, 214, 224), (224, 224, 224)],
)  # fmt: skip
"""Black, red, green, yellow, blue, magenta, cyan, white: all light enough to be read on black, also
as greys where NO_COLOR takes their colour.
"""


# The first screen must not wait for the others' imports.
def _replay_screen() -> Screen[object]:
    from kclab.tui.replay import ReplayScreen

    return ReplayScreen()


def _fc2_screen() -> Screen[object]:
    from kclab.tui.fc2 import Fc2Screen

    return Fc2Screen()


class KclabApp(App[None]):
    """What `kclab ui` shows of one store. It never writes."""

    TITLE = "kclab"
    CSS = """
    Footer { background: $panel; }
    ToastRack { margin-bottom: 2; }
    """
    MODES: ClassVar[dict[str, str | Callable[[], Screen[object]]]] = {
        "runs": RunsScreen,
        "replay": _replay_screen,
        "fc2": _fc2_screen,
    }
    DEFAULT_MODE = "runs"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = App.COMMANDS | {
        LabCommands,
        RunCommands,
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "go('runs')", "Runs", show=False),
        Binding("2", "go('replay')", "Replay", show=False),
        Binding("3", "go('fc2')", "FC2", show=False),
        Binding("ctrl+p", "command_palette", "Palette", key_display="^p", priority=True),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__()
        # Every frame of an animation is traffic on a remote line.
        self.animation_level = "none"
        self.ansi_theme_dark = PALETTE
        self.store = store
        self.pages = Reader(store)
        """For what is in view: its questions take milliseconds."""
        self.surveys = Reader(store)
        """For how long a listing is: walks that no page waits for."""
        self.details = Reader(store)
        """For the rest, which may take a while."""
        self._version: int | None = None
        self._quiet_s = 0.0

    def on_mount(self) -> None:
        """Begin to look for changes."""
        self.set_interval(POLL_S, self._poll)

    async def on_unmount(self) -> None:
        """Close the connections."""
        await self.pages.close()
        await self.surveys.close()
        await self.details.close()

    async def _poll(self) -> None:
        try:
            version = await self.pages.ask(data_version)
        except KclabError as error:
            if (screen := self._lab_screen) is not None:
                screen.failed(error)
            return
        changed = self._version not in (None, version)
        self._version = version
        self._quiet_s = 0.0 if changed else self._quiet_s + POLL_S
        if changed or self._quiet_s >= LOOK_AGAIN_S:
            self._quiet_s = 0.0
            if (screen := self._lab_screen) is not None:
                screen.refresh_data()

    @property
    def _lab_screen(self) -> LabScreen | None:
        """The screen in front; None for the palette, for help, and once the app ends."""
        screen = self.screen_stack[-1] if self.is_running and self.screen_stack else None
        return screen if isinstance(screen, LabScreen) else None

    @property
    def busy(self) -> bool:
        """Whether a question waits for its answer."""
        return any(r.waiting for r in (self.pages, self.surveys, self.details))

    def action_go(self, mode: str) -> None:
        """Switch to a screen; on it already, back to where it began."""
        if self.current_mode == mode:
            self.screen.focus_next(RowTable)
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)

    async def action_back(self) -> None:
        """Close the screen on top."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()

    def action_help(self) -> None:
        """Say what the screen shows and which keys work."""
        screen = self.screen
        if not isinstance(screen, LabScreen):
            return
        own = [
            (binding.key_display or self.get_key_display(binding), _meaning(screen, binding))
            for source in type(screen).__mro__
            for binding in map(_binding, source.__dict__.get("BINDINGS", ()))
            if issubclass(source, LabScreen) and source is not LabScreen and binding is not None
        ]
        name = (type(screen).__doc__ or "").strip().split("\n")[0].rstrip(".")
        lists = bool(screen.query(RowTable))
        self.push_screen(HelpScreen(name, screen.ABOUT, own, lists=lists))

    async def show_runs(self, **words: str) -> None:
        """Go to the runs and filter them by these words."""
        await self._to_runs()
        screen = self.screen
        if isinstance(screen, RunsScreen):
            screen.filter_by(**words)

    async def sort_runs(self, order: str) -> None:
        """Go to the runs and sort them, by a key of `kclab.db.queries.run_pages.ORDERS`."""
        await self._to_runs()
        screen = self.screen
        if isinstance(screen, RunsScreen):
            screen.sort_by(order)

    async def compare_runs(self) -> None:
        """Go to the runs and compare the marked ones."""
        await self._to_runs()
        screen = self.screen
        if isinstance(screen, RunsScreen):
            screen.action_compare()

    async def open_run(self, uuid: str) -> None:
        """Go to the runs and open one."""
        await self._to_runs()
        screen = self.screen
        if isinstance(screen, RunsScreen):
            screen.open_run(uuid)

    async def _to_runs(self) -> None:
        if self.current_mode != "runs":
            await self.switch_mode("runs")
        while len(self.screen_stack) > 1:
            await self.pop_screen()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Textual's own, without its keys panel: help here says more."""
        hidden = ("Keys", "Maximize", "Minimize")
        yield from (c for c in super().get_system_commands(screen) if c.title not in hidden)


def _binding(binding: BindingType) -> Binding | None:
    return binding if isinstance(binding, Binding) else None


def _meaning(screen: LabScreen, binding: Binding) -> str:
    """The binding's tooltip, or the first line of what its method says of itself."""
    if binding.tooltip:
        return binding.tooltip
    name = binding.action.partition("(")[0].rpartition(".")[2]
    for owner in (screen, screen.app):
        method = getattr(owner, f"action_{name}", None)
        if method is not None and method.__doc__:
            text = str(method.__doc__).strip().split("\n")[0].rstrip(".")
            return text[0].lower() + text[1:]
    return binding.description
