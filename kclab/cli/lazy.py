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
    "db": ("kclab.cli.db", "Make, upgrade, check, back up and clean the database."),
    "doctor": ("kclab.cli.doctor", "Say what this machine has and what works on it."),
}
"""name: (module with `app`, one-line summary), in the order that help shows."""


class LazyGroup(TyperGroup):
    """The root group; see the module's docstring."""

    commands_table: ClassVar[dict[str, tuple[str, str]]] = COMMANDS
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands_table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands_table:
            return None
        module, summary = self.commands_table[cmd_name]
        if self._listing or ctx.resilient_parsing:
            return TyperCommand(cmd_name, help=summary)
        app: typer.Typer = importlib.import_module(module).app
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
