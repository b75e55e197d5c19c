"""A Typer group that imports a command's module only when that command runs.

Listing the commands (`kclab --help`, completion) shows the summaries written here and imports
none of the modules.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "capture": ("kclab.cli.capture", "Capture operator calls out of a running program."),
    "replay": ("kclab.cli.replay", "Run captured workloads through their references; compare."),
    "import": ("kclab.cli.import_", "Merge a validated capture or dataset into the store."),
    "export": ("kclab.cli.export", "Write a dataset that other tools can load."),
    "runs": ("kclab.cli.runs", "List, show, compare and label runs."),
    "workloads": ("kclab.cli.workloads", "List and show captured inputs."),
    "captures": ("kclab.cli.captures", "List receipts; find where two runs first differ."),
    "definitions": ("kclab.cli.definitions", "List, show, validate, trust and make definitions."),
    "fc2": ("kclab.cli.fc2", "Characterize every algorithm for a captured GEMM."),
    "report": ("kclab.cli.report", "Write a page on what ran, failed and became slower."),
    "ui": ("kclab.cli.ui", "Browse runs, replays and FC2 results on live screens."),
    "db": ("kclab.cli.db", "Make, upgrade, check, back up and clean the database."),
    "doctor": ("kclab.cli.doctor", "Say what this machine has and what works on it."),
}
"""name: (module with `app`, one-line summary), in the order that help shows."""


COMPLETION = ("install_completion", "show_completion")


class LazyGroup(TyperGroup):
    """The root group; see the module's docstring."""

    commands_table: ClassVar[dict[str, tuple[str, str]]] = COMMANDS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Typer suggests names out of this mapping, and lists them in help.
        self.commands = {
            name: TyperCommand(name, help=summary)
            for name, (_, summary) in self.commands_table.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the table."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is to run (or whose words are being completed)."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """The real command of that name; imports its module."""
    module, _ = COMMANDS[name]
    app: typer.Typer = importlib.import_module(module).app
    command = typer.main.get_command(app)
    command.name = name
    # Each Typer brings its own --install-completion; only the root's belongs to the program.
    command.params = [p for p in command.params if p.name not in COMPLETION]
    return command
