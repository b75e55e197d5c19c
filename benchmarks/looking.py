"""Start-up and looking, as whole processes, on a database of 5,000 runs and 1M samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.big_database import build
from benchmarks.measure import Result, paired, seconds

CASES = (
    ("kclab --help", ("--help",), "≤ 250 ms"),
    ("kclab runs list", ("runs", "list"), "≤ 350 ms"),
    (
        "kclab runs list --since yesterday --format json",
        ("runs", "list", "--since", "yesterday", "--format", "json"),
        "≤ 350 ms",
    ),
    ("kclab fc2 best --workspace 32MiB", ("fc2", "best", "--workspace", "32MiB"), "≤ 350 ms"),
)


def looking(scratch: Path, pairs: int) -> list[Result]:
    """Each command against an empty Python process: the ratio says what kclab adds."""
    database = scratch / "kclab.db"
    scratch.mkdir(parents=True, exist_ok=True)
    build(database)
    return [
        paired(
            f"{name}, whole process",
            "python -c pass",
            target,
            lambda: seconds(lambda: _run("-c", "pass")),
            lambda words=words: seconds(lambda: _run("-m", "kclab", "--db", str(database), *words)),
            pairs=pairs,
        )
        for name, words, target in CASES
    ]


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
