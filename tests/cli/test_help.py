"""`--help` fits the terminal that it is read in."""

import pytest

from tests.conftest import Cli


@pytest.mark.parametrize("words", [("replay",), ("db", "check"), ("capture", "serve")])
def test_paragraphs_break_where_the_terminal_ends(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = invoke(*words, "--help").out
    prose = shown[: shown.index("╭")].splitlines()
    paragraph = [line.strip() for line in prose[4:] if line.strip()]
    assert len(paragraph) > 2
    assert all(len(line) > 60 for line in paragraph[:-2])
