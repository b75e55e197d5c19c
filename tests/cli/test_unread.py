"""`kclab … | head`: whoever reads may leave before the end, and nothing is said about it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

KCLAB = (sys.executable, "-m", "kclab")
# An unbuffered stdout takes a short write, the last before a pipe breaks, for a whole one.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def ended_unread(*words: str, cwd: Path) -> tuple[int, str]:
    """(exit code, stderr) of a command whose reader left before it wrote."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [*KCLAB, *words], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=cwd, timeout=60
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_listing_whose_reader_left_ends_quietly_as_by_sigpipe(form: str, tmp_path: Path) -> None:
    assert ended_unread("definitions", "list", "-f", form, cwd=tmp_path) == (141, "")


def test_a_few_bytes_that_nobody_reads_are_no_traceback_at_exit(tmp_path: Path) -> None:
    assert ended_unread("--version", cwd=tmp_path) == (141, "")
    assert ended_unread("--help", cwd=tmp_path) == (141, "")


def test_a_reader_that_leaves_midway_got_its_line_and_leaves_141(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # far less than the list takes
    command = [*KCLAB, "definitions", "list", "-f", "json"]
    with subprocess.Popen(
        command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, env=BUFFERED
    ) as running:
        os.close(writer)
        assert os.read(reader, 2) == b"[\n"
        os.close(reader)
        assert running.communicate(timeout=60) == (None, b"")
    assert running.returncode == 141


def test_a_failure_that_wrote_nothing_keeps_its_own_code(tmp_path: Path) -> None:
    code, told = ended_unread("runs", "list", cwd=tmp_path)
    assert code == 5
    assert "no such database" in told
