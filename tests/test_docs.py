"""The check of the documentation sees what it should see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_check import code_of, dead_links, wrong_commands


@pytest.mark.parametrize(
    "line",
    [
        "kclab runs list --since yesterday --format json",
        "KCLAB_DB=x.db kclab db check | head",
        "kclab capture run --steps 0,4 -- python train.py --nonsense",
        "kclab --db x.db runs list",
        "kclab runs list|show",
        "kclab",
        "make demo && kclab doctor",
    ],
)
def test_commands_that_exist_pass(line: str) -> None:
    assert wrong_commands(f"    {line}\n") == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("kclab rnus list", "rnus"),
        ("kclab runs lsit", "lsit"),
        ("kclab runs list --sinse yesterday", "--sinse"),
        ("kclab runs list && kclab nope", "nope"),
        (".venv/bin/kclab nope", "nope"),
    ],
)
def test_commands_that_do_not_exist_are_named(line: str, word: str) -> None:
    for page in (f"    {line}\n", f"```sh\n{line}\n```\n", f"Type `{line}`."):
        (fault,) = wrong_commands(page)
        assert word in fault


def test_a_command_over_two_lines_is_one() -> None:
    assert "kclab runs list --nope" in code_of("```\nkclab runs list \\\n  --nope\n```\n")


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    text = "[a](there.md) [b](there.md#part) [c](https://example.org/x) [d](gone.md)"
    assert dead_links(tmp_path / "page.md", text) == ["gone.md"]
