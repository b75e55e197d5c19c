"""`kclab ui` as a program: what it needs, and that it gives the terminal back."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.terminal import Terminal
from kclab.core.errors import ExitCode
from kclab.db.store import Store
from tests.conftest import Cli

WITHOUT_TEXTUAL = "import sys; sys.modules['textual'] = None; from kclab.cli import main; main()"


def test_missing_extra_is_one_sentence(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TEXTUAL, "--db", str(store.database), "ui"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr == (
        "kclab: kclab ui needs Textual, which is not installed; pip install 'kclab[tui]'.\n"
    )


@pytest.mark.parametrize("kind", ["missing", "damaged", "newer"])
def test_bad_database_is_told_as_runs_list_tells_it(
    tmp_path: Path, store: Store, invoke: Cli, kind: str
) -> None:
    path = store.database
    if kind == "missing":
        path = tmp_path / "none.db"
    elif kind == "damaged":
        path.write_bytes(b"not a database" * 1000)
    else:
        from kclab.db.connection import open_database

        connection = open_database(path, "rw")
        connection.execute("UPDATE alembic_version SET version_num = 'ffff'")
        connection.close()
    listing = invoke("--db", path, "runs", "list")
    shown = invoke("--db", path, "ui")
    assert shown.code == listing.code == ExitCode.DATABASE
    assert shown.err == listing.err
    assert shown.out == ""


def test_without_a_terminal_it_says_so(store: Store, cli: Cli) -> None:
    done = cli("--db", store.database, "ui", stdin=subprocess.DEVNULL)
    assert done.code == ExitCode.ENVIRONMENT
    assert done.err == "kclab: kclab ui needs a terminal; `kclab runs list` does without.\n"


def test_in_a_terminal_it_opens_and_ends(lab: Store) -> None:
    argv = [sys.executable, "-m", "kclab", "--db", str(lab.database), "ui"]
    with Terminal(argv) as terminal:
        terminal.seconds_until("019ad3f6-0001", terminal.began)
        terminal.settle()
        terminal.press("q")
        assert terminal.exit_code() == 0
        assert b"\x1b[?1049l" in terminal.drawn  # the shell's own screen is back


def test_ctrl_q_ends_it_from_within_a_filter(lab: Store) -> None:
    argv = [sys.executable, "-m", "kclab", "--db", str(lab.database), "ui"]
    with Terminal(argv) as terminal:
        terminal.seconds_until("019ad3f6-0001", terminal.began)
        terminal.settle()
        terminal.press("/")
        terminal.settle()
        terminal.press("\x11")
        assert terminal.exit_code() == 0


def test_it_ends_when_its_terminal_goes_away(lab: Store) -> None:
    kclab = f"{shlex.quote(sys.executable)} -m kclab --db kclab.db ui"
    argv = ["sh", "-c", f"trap '' HUP; exec {kclab}"]  # the signal is ignored, as under nohup
    with Terminal(argv) as terminal:
        terminal.seconds_until("019ad3f6-0001", terminal.began)
        terminal.settle()
        assert terminal.hang_up() == -signal.SIGHUP
