"""`--help` fits the terminal that it is read in; a refused value is told plainly."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from kclab.cli.lazy import load_command
from kclab.cli.main import app
from tests.conftest import Cli


def test_paragraphs_break_where_the_terminal_ends_not_where_the_source_does(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setenv("TERMINAL_WIDTH", width)
        assert "of the store is replayed. Exit code: 0" in invoke("replay", "--help").out


def pages(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner if words else load_command(name), (*words, name))


def options(words: tuple[str, ...]) -> list[str]:
    command = load_command(words[0])
    for name in words[1:]:
        command = command.commands[name]
    return [o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]


@pytest.mark.parametrize("words", list(pages(typer.main.get_command(app))), ids=" ".join)
def test_eighty_columns_cut_no_name_of_an_option(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(variable, "80")
    page = invoke(*words, "--help").out
    assert max(len(line) for line in page.splitlines()) <= 80
    assert set(options(words) if words else ["--version"]) <= set(page.split())


def test_a_word_that_is_no_choice_is_told_without_the_librarys_own_words(invoke: Cli) -> None:
    done = invoke("runs", "list", "--status", "bad")
    assert done.code == 2
    assert "Invalid value for '--status': 'bad' is not one of" in " ".join(done.err.split())
