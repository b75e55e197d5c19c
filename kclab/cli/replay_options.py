"""Options of `kclab replay`: which captures, how, and what only a folder in place takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from kclab.cli.options import (
    DefinitionOption,
    RayOption,
    RunOption,
    SinceOption,
    UntilOption,
    show_range,
)
from kclab.core.errors import BadUsage
from kclab.replay import Options, Selection


@dataclass(frozen=True, slots=True)
class Which:
    """Which captures to replay."""

    since: SinceOption = None
    until: UntilOption = None
    definition: DefinitionOption = None
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", metavar="UUID", help="Only these workloads; repeatable."),
    ] = None
    run: RunOption = None
    never_passed: Annotated[
        bool, typer.Option("--never-passed", help="Only captures that never passed.")
    ] = False
    failed: Annotated[
        bool, typer.Option("--failed", help="Only captures whose last verdict is no pass.")
    ] = False

    def selection(self) -> Selection:
        """The captures meant; says on stderr which instants were understood."""
        show_range(self.since, self.until)
        return Selection(
            since=self.since,
            until=self.until,
            definitions=tuple(self.definition or ()),
            workloads=tuple(self.workload or ()),
            run=self.run,
            never_passed=self.never_passed,
            failed=self.failed,
        )


@dataclass(frozen=True, slots=True)
class How:
    """How to replay them."""

    device: Annotated[str, typer.Option(help="auto, cpu, cuda (every GPU) or cuda:<n>.")] = "auto"
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes; else one a GPU, or one a core up to 8."),
    ] = None
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="The most one workload may take.")
    ] = 300.0
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Who is wrong: judge both by the reference in float64."),
    ] = False
    ray: RayOption = None

    def options(self) -> Options:
        """The same, as the replay service takes it."""
        return Options(**asdict(self))


@dataclass(frozen=True, slots=True)
class InPlace:
    """What only the replay of a folder takes."""

    definitions: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With PATH: the folder of its definitions."),
    ] = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="With PATH: let its references run on this machine."),
    ] = False

    def refuse(self) -> None:
        """Raise BadUsage for one of them where no folder is replayed."""
        given = {"--definitions": self.definitions, "--trust": self.trust}
        for option, value in given.items():
            if value:
                raise BadUsage(
                    f"{option} goes with a folder, as in `kclab replay PATH {option}"
                    f"{'' if value is True else f' {value}'}`; without PATH the store is replayed,"
                    " whose references `kclab definitions trust` lets run."
                )
