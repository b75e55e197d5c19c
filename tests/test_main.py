"""The program's manners: help, wrong words, `--db`, pipes, interrupts, and errors in a sentence."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kclab import __version__
from kclab.cli import lazy
from kclab.cli.lazy import COMMANDS, HOMES, LazyGroup, load_command
from kclab.cli.main import app, lift_database
from kclab.core import errors
from kclab.core.errors import ExitCode
from kclab.db.store import Store
from tests.conftest import Cli
from tests.db.filled import fill

KCLAB = (sys.executable, "-m", "kclab")


def leaves(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The words of a command and of everything under it."""
    found = [path]
    for name, child in getattr(command, "commands", {}).items():
        found += leaves(child, (*path, name))
    return found


@pytest.mark.parametrize(("group", "name"), HOMES)
def test_a_command_with_a_home_of_its_own_is_the_groups(group: str, name: str) -> None:
    alone = load_command(group, [name, "--help"]).commands
    whole = load_command(group).commands
    assert set(alone) == {name}
    assert [p.opts for p in alone[name].params] == [p.opts for p in whole[name].params]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_and_subcommand_works(invoke: Cli, name: str) -> None:
    for words in leaves(load_command(name), (name,)):
        done = invoke(*words, "--help")
        assert done.code == 0, (words, done.err)
        assert "Usage: kclab " + " ".join(words) in done.out
        assert "--install-completion" not in done.out
        assert invoke(*words, "-h").out == done.out


def test_the_list_of_commands_has_the_order_and_summaries_of_the_table(invoke: Cli) -> None:
    out = invoke("--help").out
    places = [out.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)
    for _, summary in COMMANDS.values():
        assert summary in out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_a_sentence_that_fits(name: str) -> None:
    assert COMMANDS[name][1].endswith(".")
    assert len(COMMANDS[name][1]) <= 62


def test_no_words_show_the_help(invoke: Cli) -> None:
    done = invoke()
    assert done.code == 2
    assert "Usage: kclab" in done.out + done.err


def test_the_version(invoke: Cli) -> None:
    assert invoke("--version").out == f"kclab {__version__}\n"


@pytest.mark.parametrize(
    ("typo", "meant"), [("rnus", "runs"), ("capture-run", "captures"), ("replays", "replay")]
)
def test_a_mistyped_command_is_answered_with_the_right_one(
    invoke: Cli, typo: str, meant: str
) -> None:
    done = invoke(typo)
    assert done.code == 2
    assert f"No such command '{typo}'" in done.err and f"'{meant}'" in done.err


def test_an_unknown_option_is_a_usage_error(invoke: Cli) -> None:
    done = invoke("db", "check", "--nope")
    assert done.code == 2 and "--nope" in done.err


@pytest.mark.parametrize("words", ["kclab ", "kclab ru", "kclab db "])
def test_completion_knows_commands_and_subcommands(cli: Cli, words: str) -> None:
    count = len(words.split(" ")) - 1
    done = cli(
        env={"_KCLAB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    )
    expected = {"kclab ": set(COMMANDS), "kclab ru": {"runs"}, "kclab db ": {"check", "gc", "init"}}
    assert expected[words] <= set(done.out.split())


@pytest.mark.parametrize(
    ("given", "lifted"),
    [
        (["runs", "list", "--db", "x"], ["--db", "x", "runs", "list"]),
        (["runs", "list", "--db=x"], ["--db=x", "runs", "list"]),
        (["--db", "x", "runs"], ["--db", "x", "runs"]),
        (["capture", "run", "--", "p", "--db", "x"], ["capture", "run", "--", "p", "--db", "x"]),
        (["capture", "run", "--db", "x", "--", "p"], ["--db", "x", "capture", "run", "--", "p"]),
        (["runs", "--db"], ["runs", "--db"]),
        ([], []),
    ],
)
def test_the_database_may_be_named_anywhere_before_a_foreign_program(
    given: list[str], lifted: list[str]
) -> None:
    assert lift_database(given) == lifted


def test_the_option_wins_over_the_variable(
    store: Store, invoke: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_DB", str(tmp_path / "nowhere.db"))
    assert invoke("db", "stats").code == 5
    assert invoke("db", "stats", "--db", store.database).code == 0
    monkeypatch.setenv("KCLAB_DB", str(store.database))
    assert invoke("db", "stats").code == 0


@pytest.mark.parametrize("make", ["missing folder", "folder", "text"])
def test_a_wrong_database_is_one_sentence_and_nothing_is_made(
    invoke: Cli, tmp_path: Path, make: str
) -> None:
    path = tmp_path / "x" / "kclab.db"
    if make != "missing folder":
        path.parent.mkdir()
        path.mkdir() if make == "folder" else path.write_text("a letter")
    before = sorted(tmp_path.rglob("*"))
    for words in (["db", "check"], ["runs", "list"], ["db", "gc", "--yes"]):
        done = invoke("--db", path, *words)
        assert done.code == 5
        assert done.out == "" and done.err.count("\n") == 1 and str(path) in done.err
    assert sorted(tmp_path.rglob("*")) == before


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `kclab doctor` raise."""
    broken = typer.Typer()

    @broken.command()
    def doctor() -> None:
        raise error

    monkeypatch.setattr(lazy, "load_command", lambda *_: typer.main.get_command(broken))


@pytest.mark.parametrize(
    "kind",
    [getattr(errors, name) for name in errors.__all__ if name not in ("ExitCode", "KclabError")],
    ids=lambda kind: kind.__name__,
)
def test_an_expected_error_is_its_sentence_and_its_exit_code(
    kind: type[errors.KclabError], invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(kind("blob [3f2a]: 76 of 80 bytes."), monkeypatch)
    done = invoke("doctor")
    assert done.code == int(kind.exit_code) != 0
    assert done.err == "kclab: blob [3f2a]: 76 of 80 bytes.\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/x/blob"), 4, "/x/blob: Permission denied."),
        (OSError(28, "No space left on device", "/x/blob"), 4, "No space left on device"),
    ],
    ids=["Ctrl-C", "permission", "disk full"],
)
def test_faults_of_the_machine_are_sentences_too(
    error: BaseException, code: int, words: str, invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(error, monkeypatch)
    done = invoke("doctor")
    assert done.code == code
    assert words in done.err and done.err.count("\n") == 1


def test_a_busy_database_deep_inside_a_command_is_a_sentence(
    invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    fail_with(error, monkeypatch)
    for words in (["--db", "x.db"], ["--db=x.db"]):
        done = invoke("doctor", *words)
        assert done.code == 5 and "/x.db: another process" in done.err


def test_a_bug_shows_its_traceback(invoke: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        invoke("doctor")


def test_every_exit_code_of_an_error_is_documented() -> None:
    codes = {kind.exit_code for kind in errors.KclabError.__subclasses__()}
    assert codes <= set(ExitCode)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the pipe is bash's")
def test_a_reader_that_leaves_ends_the_program_quietly(store: Store) -> None:
    fill(store)
    line = f"{sys.executable} -m kclab --db {store.database} db stats -f json | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout == "{" and done.stderr == ""


def test_ctrl_c_ends_with_130_and_closes_the_run(store: Store, tmp_path: Path) -> None:
    marker = tmp_path / "started"
    program = f"import pathlib, time; pathlib.Path({str(marker)!r}).touch(); time.sleep(60)"
    process = subprocess.Popen(
        [*KCLAB, "--db", store.database, "capture", "run", "--", sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told.split("kclab:")[-1]
    with sqlite3.connect(store.database) as connection:
        assert connection.execute("SELECT status FROM run").fetchone()[0] == "interrupted"
    connection.close()


def test_the_root_is_the_lazy_group() -> None:
    assert isinstance(typer.main.get_command(app), LazyGroup)
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
