"""One run's page: what it was given, where it ran, what it produced, what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.binding import Binding, BindingType

from kclab.cli.run_page import (
    TABLES,
    environment_fields,
    head_fields,
    next_steps,
    parameter_fields,
)
from kclab.cli.show import short_run
from kclab.db.queries.run_details import run_details
from kclab.db.queries.runs import find_run
from kclab.tui.page import PageScreen, fields_grid, fields_part, lines_part, table_part


class RunScreen(PageScreen):
    """What `kclab runs show` prints, kept up to date."""

    PLACE = "runs"
    ABOUT = "Everything about one run. It follows the run as it goes on."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "verdicts", "Verdicts"),
        Binding("y", "copy", "Copy uuid"),
    ]

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid

    def on_mount(self) -> None:
        """Read the run."""
        self.refresh_data()

    def refresh_data(self) -> None:
        """Read the run again."""
        self.asked(lambda c: run_details(c, find_run(c, self.uuid)), self._show)

    def _show(self, details: Mapping[str, Any]) -> None:
        self.show(_parts(details))
        self.tell(f"run {short_run(self.uuid)} · {details['status']}")

    def action_verdicts(self) -> None:
        """The verdicts that this run reached."""
        from kclab.tui.verdicts import VerdictsScreen

        self.app.push_screen(VerdictsScreen(run=self.uuid))

    def action_copy(self) -> None:
        """Copy the whole uuid, where the terminal lets programs do so."""
        self.app.copy_to_clipboard(self.uuid)
        self.tell(f"copied {self.uuid}")


def _parts(details: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield fields_grid(head_fields(details))
    # What went wrong comes first: one opens a run to see that.
    tables = sorted(TABLES, key=lambda table: table[0] not in ("errors", "did not pass"))
    for title, key, columns in tables:
        yield from table_part(title, details[key], columns)
    yield from lines_part("next", next_steps(details))
    for title, fields in (
        ("parameters", parameter_fields(details)),
        ("environment", environment_fields(details)),
    ):
        if fields:
            yield fields_part(title, fields)
    yield from _tracebacks(details)


def _tracebacks(details: Mapping[str, Any]) -> Iterator[RenderableType]:
    for row in details["errors"]:
        if row["traceback"]:
            title = f"traceback of {row['kind']} in {row['operation']}"
            yield from lines_part(title, row["traceback"].rstrip().split("\n"))
