"""What a fresh process loads: a listing must start fast, an engine must not meet our database."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "sqlalchemy", "sqlmodel", "alembic", "textual", "numpy", "fsspec")
FORBIDDEN_IN_ENGINES = ("sqlmodel", "sqlalchemy", "alembic", "pydantic", "typer", "rich")


def loaded_after(statements: str, names: tuple[str, ...]) -> list[str]:
    code = f"{statements}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "statements",
    [
        "import kclab.cli",
        "from kclab.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from kclab.cli import main\ntry: main(['db', '--help'])\nexcept SystemExit: pass",
        "from kclab.cli import main\ntry: main(['ui', '--help'])\nexcept SystemExit: pass",
        "import kclab.db.runs, kclab.db.store, kclab.blob.folder",
    ],
    ids=["package", "help", "command-help", "ui-help", "services"],
)
def test_command_line_loads_nothing_heavy(statements: str) -> None:
    assert loaded_after(statements, HEAVY) == []


def test_code_that_writes_rows_in_an_engine_loads_only_the_standard_library() -> None:
    statements = "import kclab.db.rows, kclab.db.connection, kclab.blob.folder, kclab.core.digest"
    assert loaded_after(statements, (*FORBIDDEN_IN_ENGINES, *HEAVY)) == []


def test_capture_code_loads_no_database_toolkit_into_the_engine() -> None:
    statements = (
        "import importlib, pkgutil, kclab.capture as c\n"
        "for m in pkgutil.walk_packages(c.__path__, 'kclab.capture.'):\n"
        "    if 'sitecustomize' not in m.name and 'qwen' not in m.name:\n"
        "        importlib.import_module(m.name)"
    )
    assert loaded_after(statements, FORBIDDEN_IN_ENGINES) == []
