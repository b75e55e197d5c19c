"""What the listings of workloads and of captures ask alike."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from kclab.cli.options import (
    ByOption,
    DefinitionOption,
    LimitOption,
    RunOption,
    SinceOption,
    UntilOption,
    show_range,
)
from kclab.db.queries.runs import find_run
from kclab.db.queries.selection import By, CaptureFilter


@dataclass(frozen=True, slots=True)
class Listed:
    """Which of them to list."""

    definition: DefinitionOption = None
    run: RunOption = None
    since: SinceOption = None
    until: UntilOption = None
    by: ByOption = By.CAPTURED
    limit: LimitOption = 50

    def filter(self, connection: sqlite3.Connection) -> CaptureFilter:
        """The same, as the queries take it; says on stderr which instants were understood."""
        show_range(self.since, self.until)
        run = None if self.run is None else int(find_run(connection, self.run)["id"])
        return CaptureFilter(
            self.definition or (), run, self.since, self.until, self.by, self.limit
        )
