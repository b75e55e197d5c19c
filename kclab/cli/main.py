"""The `kclab` program: the root command, and how errors end it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kclab import __version__
from kclab.cli.lazy import LazyGroup
from kclab.core.errors import ExitCode, KclabError

app = typer.Typer(
    cls=LazyGroup,
    name="kclab",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples: kclab capture run -- python train.py · kclab replay --since yesterday · "
    "kclab runs list · kclab fc2 best --workspace 32MiB",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kclab {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    db: Annotated[
        Path | None,
        typer.Option(help="Database file; its blobs lie in blob/ beside it.", envvar="KCLAB_DB"),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Capture what an engine computes, replay it against references, choose GPU kernels."""
    context.obj = db


def main() -> None:
    """Run the command line; expected errors become one sentence and an exit code."""
    try:
        app()
    except KclabError as error:
        _say(str(error))
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        _say("interrupted.")
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        # The reader of our output left (`| head`): nothing to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(ExitCode.CHECK_FAILED))


def _say(message: str) -> None:
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("kclab:", style="bold red", end=" ")
    console.print(message, markup=False)
