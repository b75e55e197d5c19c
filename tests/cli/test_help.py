"""`--help` fits the terminal that it is read in; a refused value is told plainly."""

import pytest

from tests.conftest import Cli


def test_paragraphs_break_where_the_terminal_ends_not_where_the_source_does(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setenv("TERMINAL_WIDTH", width)
        assert "of the store is replayed. Exit code: 0" in invoke("replay", "--help").out


def test_a_word_that_is_no_choice_is_told_without_the_librarys_own_words(invoke: Cli) -> None:
    done = invoke("runs", "list", "--status", "bad")
    assert done.code == 2
    assert "Invalid value for '--status': 'bad' is not one of" in " ".join(done.err.split())
