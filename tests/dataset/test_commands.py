"""`kclab import` and `kclab export` at the command line: what they say, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import Cli
from tests.dataset.builder import RootBuilder, floats


def test_an_import_ends_with_its_numbers(invoke: Cli, source: RootBuilder) -> None:
    source.double(1)
    done = invoke("import", source.report().root, "--format", "json")
    assert done.code == 0
    shown = json.loads(done.out)
    assert {key: shown[key] for key in ("source", "workloads", "receipts", "blobs", "bytes")} == {
        "source": "capture root",
        "workloads": 1,
        "receipts": 1,
        "blobs": 2,
        "bytes": 8,
    }


def test_importing_again_says_that_all_is_here(invoke: Cli, source: RootBuilder) -> None:
    source.double(1)
    invoke("import", source.report().root)
    done = invoke("import", source.root)
    assert done.code == 0
    assert "already here  1" in done.out
    assert "workloads     0" in done.out


def test_a_refused_root_names_each_row_and_exits_1(invoke: Cli, source: RootBuilder) -> None:
    source.double(1)
    source.double(2, step=1, verdict="failed")
    source.double(3, step=2, verdict=None)
    done = invoke("import", source.report().root)
    assert done.code == 1
    for line in (2, 3):
        assert f"{source.receipts}:{line}:" in done.err
    assert "2 rows refused, nothing was imported" in done.err
    assert "Traceback" not in done.err


def test_partial_takes_the_good_rows_and_exits_1(invoke: Cli, source: RootBuilder) -> None:
    source.double(1)
    source.double(2, step=1, verdict="failed")
    done = invoke("import", source.report().root, "--partial")
    assert done.code == 1
    assert f"refused: {source.receipts}:2:" in done.err
    assert "receipts      1" in done.out


def test_a_repaired_blob_is_said(invoke: Cli, source: RootBuilder, tmp_path: Path) -> None:
    source.double(1)
    invoke("import", source.report().root)
    digest = floats(1).digest()
    (tmp_path / "blob" / digest[:2] / f"{digest[2:]}.safetensors").write_bytes(b"damaged")
    assert invoke("import", source.root).code == 0
    done = invoke("import", source.root, "--verify")
    assert (done.code, "--repair" in done.err) == (1, True)
    done = invoke("import", source.root, "--repair")
    assert done.code == 0
    assert f"repaired: blob {digest}" in done.err


def test_what_is_no_dataset_is_a_usage_error_and_makes_no_database(
    invoke: Cli, tmp_path: Path
) -> None:
    (tmp_path / "set.zip").write_bytes(b"PK\3\4")
    assert invoke("import", "set.zip").code == 2
    assert "archives are not read" in invoke("import", "set.zip").err
    assert invoke("import", "nowhere").code == 2
    assert not (tmp_path / "kclab.db").exists()


def test_a_pickle_is_refused_unopened(invoke: Cli, tmp_path: Path) -> None:
    (tmp_path / "input.pt").write_bytes(b"\x80\x02cposix\nsystem\n(X\4\0\0\0oopstR.")
    done = invoke("import", "input.pt")
    assert (done.code, "pickle" in done.err) == (1, True)


def test_an_export_says_where_and_what(invoke: Cli, source: RootBuilder, tmp_path: Path) -> None:
    source.double(1)
    source.double(step=1)
    invoke("import", source.report().root)
    done = invoke("export", "out", "--with-baseline-solutions")
    assert done.code == 0
    assert "left out: workload" in done.err
    assert "workloads    1" in done.out
    assert (tmp_path / "out" / "captures.jsonl").is_file()
    assert invoke("export", "out").code == 2
    assert invoke("export", "rows", "--format", "rows").code == 0
    assert invoke("export", "none", "--definition", "nothing*").code == 3


def test_an_export_without_a_database_is_exit_5(invoke: Cli) -> None:
    assert invoke("export", "out").code == 5


def test_importing_loads_no_torch() -> None:
    code = (
        "import sys, kclab.cli.import_, kclab.dataset.importing, kclab.dataset.exporting;"
        "print([m for m in ('torch', 'numpy', 'sqlmodel', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
