"""Options of the commands that capture: what to capture, and what to note."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.options import size_option

if TYPE_CHECKING:
    from kclab.capture.options import CaptureOptions

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


@dataclass(frozen=True, slots=True)
class Notes:
    """What receipts and the run say, besides what was measured."""

    fact: Annotated[
        list[str] | None,
        typer.Option(
            "--fact",
            metavar="NAME=VALUE",
            help="For each receipt: model, revision, source…; repeatable.",
            rich_help_panel=NOTES,
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Label the run; repeatable.", rich_help_panel=NOTES),
    ] = None
    remark: Annotated[
        str | None, typer.Option("--note", help="A remark on the run.", rich_help_panel=NOTES)
    ] = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What to capture, and how much."""

    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            help="What to look for: torch (the default), qwen-image, …; repeatable.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            metavar="CLASS",
            help="Module class whose calls are the steps.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    definition: Annotated[
        list[str] | None,
        typer.Option(
            "--definition",
            metavar="GLOB",
            help="Only these definitions; each must be captured.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    definitions: Annotated[
        list[Path] | None,
        typer.Option(
            "--definitions",
            metavar="DIR",
            help="Definitions besides kclab's own; repeatable.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="N,N…",
            help="Steps to capture, as 0,4,7; else all.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    max_per_axes: Annotated[
        int | None,
        typer.Option(
            "--max-per-axes",
            metavar="K",
            min=0,
            help="Captures per definition and sizes; 0: no limit.",
            rich_help_panel=SCOPE,
        ),
    ] = 4
    max_bytes: Annotated[
        int,
        size_option(
            "--max-bytes",
            help="New bytes over all processes: 4GiB, 500MB.",
            rich_help_panel=SCOPE,
        ),
    ] = 4 << 30
    define_missing: Annotated[
        bool,
        typer.Option(
            "--define-missing",
            help="Make definitions for shapes without one.",
            rich_help_panel=SCOPE,
        ),
    ] = False
    per: Annotated[
        Per,
        typer.Option(
            "--per",
            help="One capture per variant (shape), or per site (each module).",
            rich_help_panel=SCOPE,
        ),
    ] = Per.VARIANT
    on_full: Annotated[
        OnFull,
        typer.Option(
            "--on-full",
            help="When the queue is full: hold the program, or drop and count.",
            rich_help_panel=SCOPE,
        ),
    ] = OnFull.WAIT
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Raise capture errors into the program.", rich_help_panel=SCOPE
        ),
    ] = False

    def options(self, notes: Notes) -> CaptureOptions:
        """The same, as the capture service takes it; no adapter is none, left to the caller."""
        from kclab.capture.options import CaptureOptions, parse_facts, parse_steps

        return CaptureOptions(
            adapters=tuple(self.adapter or ()),
            root=self.root,
            definitions=tuple(self.definition or ()),
            definition_folders=tuple(self.definitions or ()),
            steps=parse_steps(self.steps),
            max_per_axes=self.max_per_axes or None,
            max_bytes=self.max_bytes,
            define_missing=self.define_missing,
            per=self.per.value,
            on_full=self.on_full.value,
            strict=self.strict,
            tags=tuple(notes.tag or ()),
            note=notes.remark,
            provenance=parse_facts(notes.fact or ()),
        )
