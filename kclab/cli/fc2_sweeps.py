"""`kclab fc2 sweep` for several boundaries: a line as each is done, one table of all at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kclab.cli.fc2_options import Dtype, make_problem
from kclab.cli.output import Format, note, print_rows
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from kclab.db.store import Store
    from kclab.fc2.lab import Subject
    from kclab.fc2.sweeps import Ask, Swept


@dataclass(frozen=True, slots=True)
class Several:
    """Which boundaries a sweep is asked for."""

    names: Sequence[str]
    shapes: Sequence[str]
    every: bool
    dtype: Dtype
    fast: bool
    ray: str | None

    @property
    def wide(self) -> bool:
        """Whether it is more than one boundary swept here."""
        return self.every or self.ray is not None or len(self.names) + len(self.shapes) > 1

    @property
    def only(self) -> tuple[str | None, str | None]:
        """The stored boundary and the shape, where there is one at most."""
        return next(iter(self.names), None), next(iter(self.shapes), None)

    def check(self, resume: bool, output: Path | None) -> None:
        """Raise BadUsage for what cannot be asked of several."""
        if sum(map(bool, (self.names, self.shapes, self.every))) > 1:
            raise BadUsage("name stored boundaries, or --shape, or --all; only one of these.")
        if output is not None:
            raise BadUsage("--output takes one boundary, swept here without --ray.")
        if resume and self.ray is not None:
            raise BadUsage("--resume asks this store, which workers of --ray do not have.")

    def subjects(self, store: Store, like: Subject) -> list[Subject]:
        """What to sweep; the newest stored boundary where nothing is named."""
        from kclab.fc2.sweeps import stored_subjects

        if self.shapes:
            shapes = dict.fromkeys(self.shapes)
            return [replace(like, problem=make_problem(s, self.dtype, self.fast)) for s in shapes]
        return stored_subjects(store, like, None if self.every else self.names or ["last"])


def sweep_several(
    store: Store, subjects: Sequence[Subject], ask: Ask, ray: str | None, form: Format
) -> None:
    """Sweep, tell of each, show all; raises Exit with the code that failures have."""
    from kclab.cli.fc2_show import shown_race
    from kclab.fc2.lab import no_watch
    from kclab.fc2.sweeps import exit_code_of, sweep_each

    done = 0

    def told(swept: Swept) -> None:
        nonlocal done
        done += 1
        said = swept.said.removeprefix(f"{swept.name}: ")
        note(f"{done} of {len(subjects)}: {swept.name}: {said}")

    # Races side by side would draw over each other.
    with shown_race() if ray is None else nullcontext(no_watch) as watch:
        found = sweep_each(store, subjects, ask, ray=ray, told=told, watch=watch)
    _print(store, [swept.run_uuid for swept in found if swept.run_uuid], form)
    if code := exit_code_of(found):
        raise typer.Exit(code)


def _print(store: Store, runs: Sequence[str], form: Format) -> None:
    from kclab.cli.fc2_show import RESULT_COLUMNS, SCOPE, note_drift, with_text
    from kclab.db.queries.fc2 import run_results

    with closing(store.read()) as connection:
        rows = [with_text(row) for run in runs for row in run_results(connection, run)]
    print_rows(rows, [SCOPE, *RESULT_COLUMNS], form)
    note_drift(rows)
