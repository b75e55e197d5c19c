"""Options of the commands that capture, as parameter types: what to capture, and what to note."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kclab.cli.options import size_option

SCOPE = "What to capture"
NOTES = "What receipts and the run say"


class Per(StrEnum):
    """What counts as one capture within a step."""

    VARIANT = "variant"
    SITE = "site"


class OnFull(StrEnum):
    """What a full queue does."""

    WAIT = "wait"
    DROP = "drop"


DefinitionGlobs = Annotated[
    list[str] | None,
    typer.Option(
        "--definition",
        metavar="GLOB",
        help="Only these definitions; each must be captured.",
        rich_help_panel=SCOPE,
    ),
]
DefinitionFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--definitions",
        metavar="DIR",
        help="Definitions besides kclab's own; repeatable.",
        rich_help_panel=SCOPE,
    ),
]
MaxBytes = Annotated[
    int,
    size_option(
        "--max-bytes",
        help="New bytes over all processes: 4GiB, 500MB.",
        rich_help_panel=SCOPE,
    ),
]
DefineMissing = Annotated[
    bool,
    typer.Option(
        "--define-missing",
        help="Make definitions for shapes without one.",
        rich_help_panel=SCOPE,
    ),
]
PerOption = Annotated[
    Per,
    typer.Option(
        "--per",
        help="One capture per variant (shape), or per site (each module).",
        rich_help_panel=SCOPE,
    ),
]
OnFullOption = Annotated[
    OnFull,
    typer.Option(
        "--on-full",
        help="When the queue is full: hold the program, or drop and count.",
        rich_help_panel=SCOPE,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Raise capture errors into the program.", rich_help_panel=SCOPE),
]
Facts = Annotated[
    list[str] | None,
    typer.Option(
        "--fact",
        metavar="NAME=VALUE",
        help="For each receipt; repeatable.",
        rich_help_panel=NOTES,
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Label the run; repeatable.", rich_help_panel=NOTES),
]
Remark = Annotated[
    str | None, typer.Option("--note", help="A remark on the run.", rich_help_panel=NOTES)
]
