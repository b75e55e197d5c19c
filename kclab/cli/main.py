"""The `kclab` program: the root command, and how errors end it."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kclab import __version__
from kclab.cli.lazy import LazyGroup
from kclab.core.errors import ExitCode, KclabError
from kclab.core.memory import is_out_of_memory
from kclab.core.ray_address import AUTO, is_address

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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; expected errors become one sentence and an exit code."""
    logging.basicConfig(format="kclab: %(message)s", level=logging.WARNING)
    words = lift_database(name_cluster(list(sys.argv[1:] if argv is None else argv)))
    try:
        app(words, prog_name="kclab")
    except KclabError as error:
        _end(str(error), error.exit_code)
    except SystemExit as end:
        if end.code == ExitCode.INTERRUPTED:
            _say("interrupted.")
        # Typer and Rich answer a broken pipe by ending with 1, which here means something else.
        if isinstance(end.__context__, BrokenPipeError) or not _flushed():
            _print_nowhere()
            sys.exit(int(ExitCode.UNREAD))
        raise
    except Exception as error:
        # Everything else is a bug and shows its traceback, but for faults of files and disks, and
        # sizes that this machine has no room for.
        _end_for_file(error, words)
        if is_out_of_memory(error):
            _end(f"out of memory: {str(error).partition(chr(10))[0]}", ExitCode.ENVIRONMENT)
        raise


def _flushed() -> bool:
    """Whether what was printed reached its reader; Python's own flush would end in a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True


def _print_nowhere() -> None:
    """Let Python's own flush at the end succeed, where the reader left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            os.dup2(nowhere, descriptor)


def lift_database(words: list[str]) -> list[str]:
    """Move `--db PATH` to the front, so that it may also stand after the command.

    Words after `--` belong to somebody else's program and are left alone.
    """
    end = words.index("--") if "--" in words else len(words)
    for at, word in enumerate(words[:end]):
        if word == "--db" and at + 1 < end:
            return [*words[at : at + 2], *words[:at], *words[at + 2 :]]
        if word.startswith("--db="):
            return [word, *words[:at], *words[at + 1 :]]
    return words


def name_cluster(words: list[str]) -> list[str]:
    """Write `--ray auto` for a `--ray` that no address follows.

    Words after `--` belong to somebody else's program and are left alone.
    """
    end = words.index("--") if "--" in words else len(words)
    if "--ray" not in words[:end]:
        return words
    at = words.index("--ray") + 1
    named = at < end and is_address(words[at])
    return words if named else [*words[:at], AUTO, *words[at:]]


def _end_for_file(error: Exception, words: list[str]) -> None:
    if isinstance(error, OSError) and error.filename is not None:
        _end(f"{error.filename}: {error.strerror}.", ExitCode.ENVIRONMENT)
    if "sqlite3" in sys.modules:
        from kclab.db.connection import explain
        from kclab.db.store import locate_database

        problem = explain(error, locate_database(_named(words)).resolve())
        if problem is not None:
            _end(str(problem), problem.exit_code)


def _named(words: list[str]) -> Path | None:
    """What `--db` says, if it is there: then it comes first."""
    option, _, value = words[0].partition("=") if words else ("", "", "")
    return Path(value or words[1]) if option == "--db" else None


def _end(message: str, code: ExitCode) -> None:
    if not _flushed():
        _print_nowhere()
    _say(message)
    sys.exit(int(code))


def _say(message: str) -> None:
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("kclab:", style="bold red", end=" ")
    console.print(message, markup=False)
