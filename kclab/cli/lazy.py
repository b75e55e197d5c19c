"""A Typer group that imports a command's module only when that command runs.

Listing the commands (`kclab --help`, completion) shows the summaries written here and imports
none of the modules.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

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


HOMES: dict[tuple[str, str], str] = {
    ("fc2", name): "kclab.cli.fc2_memory"
    for name in ("best", "pareto", "candidates", "history", "explain", "reproduce")
}
"""(group, command): the module whose `app` has it too, to be imported in place of the group's."""

PYDANTIC_LEAD = "Value error, "
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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what Pydantic puts before a refused value is no word for a person."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(PYDANTIC_LEAD)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer's page of the root command."""
        from kclab.cli.help_page import whole_names

        with whole_names():
            super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is to run (or whose words are being completed)."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load_command(name, rest), rest


def load_command(name: str, words: Sequence[str] = ()) -> Any:
    """The real command of that name; imports its module.

    `words` follow it: of a group whose command they name, only that command is built. Typer takes
    two milliseconds for each, and `kclab fc2` has eighteen.
    """
    module = HOMES.get((name, words[0])) if words else None
    app: typer.Typer = importlib.import_module(module or COMMANDS[name][0]).app
    named = [c for c in app.registered_commands if words and _name(c) == words[0]]
    if named and len(app.registered_commands) > 1:
        alone = copy.copy(app)
        alone.registered_commands, alone.registered_groups = named, []
        command: Any = typer.main.get_group(alone)
    else:
        command = typer.main.get_command(app)
    command.name = name
    # Each Typer brings its own --install-completion; only the root's belongs to the program.
    command.params = [p for p in command.params if p.name not in COMPLETION]
    _fit_help(command)
    return command


def _fit_help(command: Any) -> None:
    """Let a terminal of any width break the lines of a docstring, and cut no option's name.

    Typer keeps the source's lines, and shortens names.
    """
    command.format_help = partial(_format_help, command)
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _fit_help(inner)


def _format_help(command: Any, ctx: Any, formatter: Any) -> None:
    from kclab.cli.help_page import whole_names

    with whole_names():
        type(command).format_help(command, ctx, formatter)


def _name(command: CommandInfo) -> str:
    function = command.callback
    return command.name or typer.main.get_command_name(function.__name__ if function else "")
