"""Captures that a program takes down with it fail the run, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOSES = """
import os, sys, time, torch
from kclab.capture.writer import Writer
Writer._store = lambda self, group: time.sleep(60)
torch.nn.functional.linear(torch.ones(1, 4), torch.ones(3, 4))
"""

ENDS = {
    "at once": ("os._exit(0)", "died with 1 capture not yet stored"),
    "in another program": (
        "os.execv(sys.executable, [sys.executable, '-c', 'import torch'])",
        "could not store 1 capture.",
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_lost_capture_fails_a_run_whose_program_ended_well(tmp_path: Path, how: str) -> None:
    last_line, words = ENDS[how]
    script = tmp_path / "loses.py"
    script.write_text(LOSES + last_line)
    command = (sys.executable, "-m", "kclab", "capture", "run", "--define-missing", "--")
    ran = subprocess.run(
        [*command, sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 1, ran.stderr
    assert words in ran.stderr
    assert "no call" not in ran.stderr
