"""The command-line reference as Markdown, written from the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from kclab.cli.lazy import COMMANDS, load_command
from kclab.cli.main import app
from kclab.core.errors import ExitCode

HEAD = """# Command-line reference

Written by `python -m tests.docs_check --write` from the program's own help; `make check` holds it
to that. `kclab COMMAND --help` shows the same in the terminal.

`--db PATH` (or `KCLAB_DB`, or `db` under `[tool.kclab]` in kclab.toml or pyproject.toml) names the
store for every command, and may stand before the command or after it.
"""

EXIT_CODES = {
    ExitCode.OK: "done, and every check held",
    ExitCode.CHECK_FAILED: "a check failed: a mismatch, a regression, a refused dataset, damage",
    ExitCode.USAGE: "the command line, or a file that it names, makes no sense",
    ExitCode.NOTHING: "nothing matched or was measured",
    ExitCode.ENVIRONMENT: "the machine lacks something: a GPU, a package, a trusted reference",
    ExitCode.DATABASE: "the database is missing, busy, older, newer or damaged",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM)",
    ExitCode.UNREAD: "whoever read the output left before its end, as in `\\| head`",
}


def reference() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    lines = [HEAD, "| exit code | means |", "|---|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "## kclab", "", str(root.help), "", *_parameters(root)]
    for name in COMMANDS:
        command = load_command(name)
        lines += [f"## kclab {name}", "", *_command(command, ("kclab", name))]
        for path, child in commands_under(command, ("kclab", name)):
            lines += [f"### {' '.join(path)}", "", *_command(child, path)]
    return "\n".join(lines).rstrip() + "\n"


def commands_under(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of everything below a group, depth first."""
    for name, child in getattr(command, "commands", {}).items():
        yield (*path, name), child
        yield from commands_under(child, (*path, name))


def _command(command: Any, path: tuple[str, ...]) -> list[str]:
    lines = [_plain(command.help or ""), ""]
    if not getattr(command, "commands", None):
        lines += ["```", _usage(command, path), "```", ""]
    return [*lines, *_parameters(command)]


def _usage(command: Any, path: tuple[str, ...]) -> str:
    pieces = [*path]
    if any(parameter.param_type_name == "option" for parameter in command.params):
        pieces.append("[OPTIONS]")
    return " ".join([*pieces, *map(_argument, _arguments(command))])


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "argument"]


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().strip("[].")
    name += "..." if parameter.nargs == -1 and not name.endswith("…") else ""
    return name if parameter.required else f"[{name}]"


def _parameters(command: Any) -> list[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    if not shown:
        return []
    rows = [f"| {_spelling(p)} | {_meaning(p)} |" for p in shown]
    return ["| option or argument | |", "|---|---|", *rows, ""]


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"{names} {_value(parameter)}".strip()


def _value(parameter: Any) -> str:
    if parameter.is_flag:
        return ""
    return _choices(parameter) or str(parameter.metavar or parameter.name).upper()


def _choices(parameter: Any) -> str | None:
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "\\|".join(str(member.value) for member in annotation)
    return None


def _meaning(parameter: Any) -> str:
    text = _plain(parameter.help or "")
    default = _default(parameter)
    return f"{text} Default: {default}." if default else text


def _default(parameter: Any) -> str | None:
    value = parameter.default
    if value is None or value is False or value in ("", [], ()) or callable(value):
        return None
    if parameter.required or type(value).__name__ == "Sentinel":
        return None
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _plain(text: str) -> str:
    return (
        " ".join(line if line else "\n\n" for line in text.split("\n"))
        .replace("|", "\\|")
        .replace(" \n\n ", "\n\n")
        .strip()
    )
