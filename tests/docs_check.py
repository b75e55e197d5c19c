"""Documentation that is checked: the reference is the program's, examples would run, links lead.

`python -m tests.docs_check` tells what is wrong and exits 1; `--write` writes docs/cli.md anew.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kclab.cli.lazy import LazyGroup, load_command
from kclab.cli.main import app
from tests.cli_reference import reference

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "cli.md"


def pages() -> list[Path]:
    """Every page that a user reads."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def problems() -> Iterator[str]:
    """What is wrong, a sentence each."""
    if not REFERENCE.is_file() or REFERENCE.read_text(encoding="utf-8") != reference():
        yield "docs/cli.md is not what the program says; run python -m tests.docs_check --write"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        text = page.read_text(encoding="utf-8")
        where = page.relative_to(ROOT)
        if page != REFERENCE:
            yield from (f"{where}: {fault}" for fault in wrong_commands(text))
        yield from (
            f"{where}: make has no target {name}"
            for name in re.findall(r"\bmake ([a-z][a-z-]*)\b", "\n".join(code_of(text)))
            if name not in targets
        )
        yield from (f"{where}: nothing at {link}" for link in dead_links(page, text))


def code_of(text: str) -> list[str]:
    """The code of a page: fenced and indented blocks line by line, and inline code."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^(?: {4}|\t)(.+)$", text, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", text)
    joined = re.sub(r"\\\n\s*", "", "\n".join(fenced))
    return [*joined.split("\n"), *indented, *inline]


def wrong_commands(text: str) -> list[str]:
    """What the `kclab …` lines of a page name that does not exist."""
    faults = []
    for line in dict.fromkeys(code_of(text)):
        for words in _invocations(line):
            fault = wrong_words(words)
            if fault:
                faults.append(f"`{line.strip()}`: {fault}")
    return faults


def _invocations(line: str) -> Iterator[list[str]]:
    """The words after each `kclab` that starts a command in a shell line."""
    for part in re.split(r"[|;]|&&", line.strip().removeprefix("$ ")):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words = words[1:]
        if words and words[0].rpartition("/")[2] == "kclab":
            yield words[1:]


PLACEHOLDER = re.compile(r"[A-Z]+|<.*|\[?(…|\.\.\.)\]?")
"""A word that stands for others, as in `kclab COMMAND --help`."""


def wrong_words(words: list[str]) -> str | None:
    """What a command line names that the program does not know."""
    command: Any = typer.main.get_command(app)
    options = _options(command) | {"--help": False, "-h": False}
    left = iter(words)
    for word in left:
        if word == "--" or (PLACEHOLDER.fullmatch(word) and _children(command)):
            return None
        if word.startswith("-"):
            name, _, value = word.rstrip("…").partition("=")
            if name not in options:
                return f"no option {name}"
            if options[name] and not value:
                next(left, None)
        elif _children(command):
            unknown = [one for one in word.split("|") if one not in _children(command)]
            if unknown:
                return f"no command {unknown[0]}"
            command = _child(command, word.split("|")[0])
            options |= _options(command)
    return None


def _children(command: Any) -> list[str]:
    return list(getattr(command, "commands", {}))


def _child(command: Any, name: str) -> Any:
    return load_command(name) if isinstance(command, LazyGroup) else command.commands[name]


def _options(command: Any) -> dict[str, bool]:
    """name: whether a value follows."""
    return {
        name: not p.is_flag
        for p in command.params
        if p.param_type_name == "option"
        for name in (*p.opts, *p.secondary_opts)
    }


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    return [link for link in local if not (page.parent / link).exists()]


def main() -> int:
    if "--write" in sys.argv:
        REFERENCE.write_text(reference(), encoding="utf-8")
        print(f"wrote {REFERENCE.relative_to(ROOT)}")
        return 0
    found = list(problems())
    print("\n".join(found) or "docs: as the program says")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
