"""Looking loads no more than it shows."""

from __future__ import annotations

import subprocess
import sys

from kclab.db.store import Store

LOADED = """
import sys
from kclab.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded_by(*words: str) -> set[str]:
    """Top-level modules in a process after it ran a command."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_json_loads_no_rich_and_no_library(sample: Store) -> None:
    modules = loaded_by("runs", "list", "--since", "3 days ago", "--format", "json")
    heavy = {"rich", "torch", "numpy", "sqlalchemy", "sqlmodel", "alembic", "textual", "requests"}
    assert modules & heavy == set()


def test_table_loads_rich_and_no_library(sample: Store) -> None:
    modules = loaded_by("captures", "list")
    assert modules & {"torch", "numpy", "sqlalchemy", "sqlmodel", "alembic", "textual"} == set()
    assert "rich" in modules
