"""A year's database, and a store of many blobs, still answer. `make bench` says how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.big_database import build
from kclab.db.check import check
from kclab.db.connection import writing
from kclab.db.rows import BlobRow, add_blobs
from kclab.db.runs import run
from kclab.db.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("year") / "kclab.db"
    build(path)
    return path


def answer(*words: str) -> str:
    """What a kclab process prints."""
    return subprocess.run(
        [sys.executable, "-m", "kclab", *words], check=True, capture_output=True, text=True
    ).stdout


def test_runs_are_listed_over_a_million_samples(year: Path) -> None:
    rows = json.loads(answer("--db", str(year), "runs", "list", "--format", "json"))
    recent = json.loads(
        answer("--db", str(year), "runs", "list", "--since", "yesterday", "--format", "json")
    )
    assert rows and recent and len(recent) < 5000


def test_a_year_of_rows_is_checked(year: Path) -> None:
    assert not check(Store.at(year)).database_damaged


def test_the_contents_of_a_year_are_counted(year: Path) -> None:
    stats = json.loads(answer("--db", str(year), "db", "stats", "--format", "json"))
    assert stats["tables"]["timing_sample"] == 1_000_000


def test_twenty_thousand_blobs_are_written_and_checked(store: Store) -> None:
    with run(store, "import", {}) as active:
        batch = store.blobs.batch()
        rows = [
            BlobRow(batch.add("int64", (32,), i.to_bytes(8, "little") * 32), "int64", (32,), 256)
            for i in range(20_000)
        ]
        batch.sync()
        with writing(active.connection):
            assert add_blobs(active.connection, rows) == 20_000
    report = check(store)
    assert (report.blobs, report.faults) == (20_000, [])
