"""`--help` fits the terminal that it is read in."""

import pytest

from tests.conftest import Cli


def test_paragraphs_break_where_the_terminal_ends_not_where_the_source_does(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setenv("TERMINAL_WIDTH", width)
        assert "of the store is replayed. Exit code: 0" in invoke("replay", "--help").out
