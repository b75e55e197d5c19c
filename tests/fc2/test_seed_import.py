"""Importing the seed script's files, and asking for the best of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.core.errors import BadUsage, NothingMatched
from kclab.db.queries.fc2 import best_results
from kclab.db.store import Store
from kclab.fc2.seed_import import import_file
from tests.conftest import Cli
from tests.fc2.seed_files import BASE, MIB, candidate, scaled, write


def best(store: Store, workspace: int, **more: Any) -> list[dict[str, Any]]:
    with closing(store.read()) as connection:
        return best_results(connection, workspace=workspace, **more)


@pytest.mark.parametrize(
    ("workspace", "tile"), [(32 * MIB, 601), (64 * MIB, 600), (16 * MIB, 602), (32_000_000, 602)]
)
def test_workspace_limit_counts_what_a_config_requires(
    store: Store, tmp_path: Path, workspace: int, tile: int
) -> None:
    rows = [
        candidate(0, scaled(0.90), required=48 * MIB),
        candidate(1, scaled(0.95), required=32 * MIB),
        candidate(2, scaled(0.97), required=0),
        candidate(3, scaled(0.80), required=None),
    ]
    import_file(store, write(tmp_path / "a.json", rows))
    (row,) = best(store, workspace)
    assert row["config"].split(":")[1] == str(tile)


def test_unknown_workspace_need_stays_unknown(store: Store, tmp_path: Path) -> None:
    import_file(store, write(tmp_path / "a.json", [candidate(3, scaled(0.8), required=None)]))
    assert best(store, 64 * MIB) == []
    with closing(store.read()) as connection:
        stored = connection.execute("SELECT required_workspace FROM fc2_result").fetchall()
    assert {row[0] for row in stored} == {None}


def test_ratio_is_paired_and_drift_is_told(store: Store, tmp_path: Path) -> None:
    clock = [2.0 * 1.01**i for i in range(12)]  # each launch is 1 % slower than the one before
    base, fast = [], []
    for number in range(6):
        first, second = clock[2 * number], clock[2 * number + 1]
        base.append(first if number % 2 == 0 else second)
        fast.append((second if number % 2 == 0 else first) * 0.97)
    import_file(store, write(tmp_path / "a.json", [candidate(0, fast, base=base)]))
    (row,) = best(store, 0)
    assert 1 / row["ratio"] == pytest.approx(0.97, abs=0.0005)
    assert row["drift"] == pytest.approx(0.11, abs=0.01)


def test_drift_is_shown_on_stderr(invoke: Cli, tmp_path: Path) -> None:
    base = [2.0 * 1.03**i for i in range(6)]
    path = write(tmp_path / "a.json", [candidate(0, [b * 0.97 for b in base], base=base)])
    invoke("fc2", "import", path)
    assert "the control drifted by +15.9 %" in invoke("fc2", "best").err


def test_faster_but_inexact_is_never_best(store: Store, tmp_path: Path) -> None:
    rows = [candidate(0, scaled(0.70), exact=False), candidate(1, scaled(0.99))]
    import_file(store, write(tmp_path / "a.json", rows))
    assert best(store, 64 * MIB)[0]["config"].split(":")[1] == "601"
    (anything,) = best(store, 64 * MIB, inexact=True)
    assert anything["config"].split(":")[1] == "600" and not anything["exact"]


def test_inexact_is_marked_with_its_elements(invoke: Cli, tmp_path: Path) -> None:
    invoke("fc2", "import", write(tmp_path / "a.json", [candidate(0, scaled(0.7), exact=False)]))
    assert invoke("fc2", "best").code == 3
    assert "parity failed (7 elements)" in invoke("fc2", "best", "--all").out


def test_nothing_measured_keeps_the_run_and_its_errors(store: Store, tmp_path: Path) -> None:
    errors = [{"operation": "benchmark", "error": "RuntimeError('CUBLAS_STATUS_NOT_SUPPORTED')"}]
    path = write(tmp_path / "a.json", [], errors_and_unsupported=errors)
    with pytest.raises(NothingMatched, match="no candidate was measured"):
        import_file(store, path)
    with closing(store.read()) as connection:
        assert connection.execute("SELECT status FROM run").fetchone()[0] == "empty"
        messages = [row[0] for row in connection.execute("SELECT message FROM error")]
    assert errors[0]["error"] in messages


def test_nothing_measured_is_no_best(invoke: Cli, tmp_path: Path) -> None:
    invoke("fc2", "import", write(tmp_path / "a.json", []))
    found = invoke("fc2", "best")
    assert found.code == 3 and "no measured config" in found.err and not found.out


def test_logical_and_padded_rows_are_both_kept(invoke: Cli, tmp_path: Path) -> None:
    invoke("fc2", "import", write(tmp_path / "a.json", [candidate(0, [2.0] * 6, base=BASE)]))
    (row,) = json.loads(invoke("fc2", "best", "--format", "json").out)
    assert (row["m"], row["m_padded"]) == (37_810, 37_824)
    logical = 2 * 37_810 * 5_376 * 14_336
    assert row["tflops"] == pytest.approx(logical / 2.0e9, rel=1e-3)


def test_the_same_file_adds_nothing(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [candidate(0, scaled(0.9))])
    first = import_file(store, path)
    again = import_file(store, path)
    assert again.already and again.run_uuid == first.run_uuid
    with closing(store.read()) as connection:
        assert connection.execute("SELECT count(*) FROM fc2_result").fetchone()[0] == 2


def test_samples_are_kept(store: Store, tmp_path: Path) -> None:
    import_file(store, write(tmp_path / "a.json", [candidate(0, scaled(0.9))]))
    with closing(store.read()) as connection:
        rows = connection.execute(
            "SELECT arm, count(*), sum(ms) FROM timing_sample GROUP BY arm ORDER BY arm"
        ).fetchall()
    assert [(r[0], r[1]) for r in rows] == [("A", 12), ("B", 12)]
    assert rows[0][2] == pytest.approx(2 * sum(BASE))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fc2_boundary": 3'])
def test_another_file_is_refused(store: Store, tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(BadUsage, match=r"a\.json"):
        import_file(store, path)


def test_damaged_candidate_is_named_and_nothing_is_kept(store: Store, tmp_path: Path) -> None:
    row = candidate(1, scaled(0.9))
    del row["fc2_only"]["parity"]
    path = write(tmp_path / "a.json", [candidate(0, scaled(0.9)), row])
    with pytest.raises(BadUsage, match="candidate 1, fc2_only: KeyError"):
        import_file(store, path)
    with closing(store.read()) as connection:
        assert connection.execute("SELECT count(*) FROM fc2_result").fetchone()[0] == 0
