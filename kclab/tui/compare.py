"""Two runs against each other: what became better or worse, and what differs around them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from kclab.cli.run_compare import environment_changes, told_rows, told_value
from kclab.cli.show import short, short_run
from kclab.cli.table import printable
from kclab.db.queries.compared import Change, Compared, told_counts
from kclab.db.queries.run_compare import compare_runs
from kclab.db.queries.run_diff import run_differences, run_facts
from kclab.db.queries.runs import find_run
from kclab.tui.rows import ListedRows
from kclab.tui.screen import LabScreen
from kclab.tui.table import Field, RowTable

FIELDS = (
    Field("change", "change", 9),
    Field("kind", "kind", 7, room=140),
    Field("name", "definition", 14, grow=True, tail=True),
    Field("workload", "workload", 8, show=short, room=90, sparse=True),
    Field("place", "where", 14, grow=True, tail=True, sparse=True),
    Field("step", "step", 4, right=True, room=76, sparse=True),
    Field("rank", "rank", 4, right=True, room=120, sparse=True),
    Field("before", "before", 10, grow=True),
    Field("after", "after", 10, grow=True),
    Field("told_gain", "gain", 24, sparse=True),
    Field("told_noise", "noise", 6, sparse=True, room=100),
    Field("plot", "1 = before", 21, sparse=True, room=120),
)

DIFF_FIELDS = (
    Field("area", "area", 11),
    Field("name", "name", 16, grow=True),
    Field("a", "A", 20, grow=True, show=told_value),
    Field("b", "B", 20, grow=True, show=told_value),
)


class PairScreen(LabScreen):
    """Two runs and a table about them."""

    PLACE = "runs"
    DEFAULT_CSS = """
    PairScreen #pair { height: auto; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left", "app.back", "Back", key_display="esc"),
        Binding("a", "everything", "Same, too"),
        Binding("s", "swap", "Swap A and B"),
    ]
    TABLE: ClassVar[Sequence[Field]] = ()
    EMPTY: ClassVar[str] = ""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.everything = False

    def body(self) -> Iterable[Widget]:
        """Which two, and the table."""
        yield Static(id="pair", markup=False)
        yield RowTable(self.TABLE, empty=self.EMPTY)

    def on_mount(self) -> None:
        """Read and show."""
        self.query_one(RowTable).focus()
        self.read()

    def read(self) -> None:
        """Ask for what is shown."""

    def head(self, *lines: Text) -> None:
        """What stands above the table."""
        pair = Text.assemble(
            ("A ", "bold"), short_run(self.first), ("   B ", "bold"), short_run(self.second)
        )
        self.query_one("#pair", Static).update(Text("\n").join([pair, *lines]))

    def action_everything(self) -> None:
        """Show, or hide, what is the same in both."""
        self.everything = not self.everything
        self.read()

    def action_swap(self) -> None:
        """Look at it the other way round."""
        self.first, self.second = self.second, self.first
        self.read()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare_runs` found, and what the two runs are."""

    environments: str
    commands: tuple[str, str]
    found: Sequence[Compared]


class CompareScreen(PairScreen):
    """What got better, worse, appeared or vanished from A to B."""

    ABOUT = (
        "What became of each verdict, capture and timing from run A to run B, the worst first. "
        "Differences of the environment are named on top, since they may explain the rest. gain: "
        "how much faster B is, with its 95 % interval; undecided, where neither a change nor "
        "sameness is proven; noise, what a difference must exceed. Enter leads to the definition's "
        "verdicts in B, or to the run itself."
    )
    TABLE = FIELDS
    EMPTY = "nothing changed"

    def read(self) -> None:
        """Compare."""
        self.asked(lambda c: _compare(c, self.first, self.second), self._show)

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        from kclab.tui.run import RunScreen
        from kclab.tui.verdicts import VerdictsScreen

        row = event.row
        run = self.first if row["after"] is None else self.second
        if row["kind"] == "verdict":
            self.app.push_screen(VerdictsScreen(definition=row["name"], run=run))
        else:
            self.app.push_screen(RunScreen(run))

    def _show(self, found: Comparison) -> None:
        rows = told_rows([one for one in found.found if self.everything or one.change is not _SAME])
        self.query_one(RowTable).show(ListedRows(rows))
        lines = []
        if found.environments:
            text = printable(f"other environment: {found.environments}")
            lines.append(Text(text, style="yellow"))
        if not any(one.comparable for one in found.found):
            first, second = found.commands
            text = f"{first} and {second} have no workload, site or measurement in common."
            lines.append(Text(text, style="yellow"))
        self.head(*lines)
        counts = Counter(one.change for one in found.found)
        self.tell(told_counts(counts))


_SAME = Change.SAME


def _compare(connection: sqlite3.Connection, first: str, second: str) -> Comparison:
    a, b = find_run(connection, first), find_run(connection, second)
    return Comparison(
        environment_changes(connection, a, b),
        (str(a["command"]), str(b["command"])),
        compare_runs(connection, int(a["id"]), int(b["id"])),
    )


class DiffScreen(PairScreen):
    """What differs between two runs in parameters and environment."""

    ABOUT = (
        "How the two runs were started and where they ran, as far as that differs. Enter shows "
        "both values whole."
    )
    TABLE = DIFF_FIELDS
    EMPTY = "the two runs do not differ"

    def read(self) -> None:
        """Compare what the runs were given."""
        self.asked(lambda c: _differences(c, self.first, self.second, self.everything), self._show)

    @on(RowTable.Chosen)
    def _chosen(self, event: RowTable.Chosen) -> None:
        row = event.row
        told = f"A {told_value(row['a'])}\nB {told_value(row['b'])}"
        self.notify(printable(told), title=row["name"], timeout=20, markup=False)

    def _show(self, rows: list[dict[str, Any]]) -> None:
        self.query_one(RowTable).show(ListedRows(rows))
        self.head()
        differing = sum(row["differs"] for row in rows)
        self.tell(f"{differing} differ" + (f", {len(rows) - differing} do not" * self.everything))


def _differences(
    connection: sqlite3.Connection, first: str, second: str, everything: bool
) -> list[dict[str, Any]]:
    facts = [run_facts(connection, find_run(connection, uuid)) for uuid in (first, second)]
    return run_differences(*facts, everything=everything)
