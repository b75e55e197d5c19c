"""The benchmark of several GPUs, small and on the CPU: the work spreads, the verdicts stay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import gpus
from benchmarks.measure import BASELINE, KCLAB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpus.make_store(tmp_path_factory.mktemp("spread"), "cpu", gpus.SMALL, 8)


def rows(database: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(
            "SELECT r.subject, r.status, r.reason, r.warning, o.max_abs, o.mismatched"
            " FROM replay r JOIN replay_output o ON o.replay_id = r.id"
            " WHERE r.run_id = (SELECT max(run_id) FROM replay) ORDER BY r.subject"
        ).fetchall()


def test_two_workers_give_the_rows_of_one(store: Path) -> None:
    gpus.replay(store, "cpu", 1)
    alone = rows(store)
    gpus.replay(store, "cpu", 2)
    assert rows(store) == alone
    assert [row[1:4] for row in alone] == [("passed", None, None)] * 8


def test_the_workloads_share_their_cache(store: Path) -> None:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        (blobs,) = connection.execute("SELECT count(*) FROM blob").fetchone()
    assert blobs == 8 * 2 + 2


def test_a_gpu_that_took_no_part_is_not_measured(store: Path) -> None:
    gpus.replay(store, "cpu", 1)
    assert gpus.work_seconds(store, 8, 2) > 0
    with pytest.raises(RuntimeError, match="8 of 9 passed, on cpu"):
        gpus.work_seconds(store, 9, 2)


def test_both_ways_of_counting_come_in_pairs(tmp_path: Path) -> None:
    results = list(gpus.spread(tmp_path / "work", "cpu", 2, gpus.SMALL, 4, 1))
    assert [result.name.partition(", ")[2] for result in results] == [
        "whole process",
        "without start-up",
    ]
    for whole, part in zip(*(result.samples for result in results), strict=True):
        assert 0 < part.ms < whole.ms
    assert {sample.arm for sample in results[0].samples} == {BASELINE, KCLAB}


def test_without_two_gpus_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert list(gpus.gpus(tmp_path, 1.0, 1, quick=False)) == []
    assert "needs two GPUs, and there are 1 here" in capsys.readouterr().err
