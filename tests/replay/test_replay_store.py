"""Replaying a store: what is selected, what is written, how it ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from kclab.core.definition import Definition
from kclab.core.errors import DatabaseMissing, NothingMatched
from kclab.core.trust import trust, untrust
from kclab.db.store import Store
from kclab.db.verdicts import ReplayRow
from kclab.replay import Options, ReplaySummary, Selection, replay
from tests.replay.toys import StoreBuilder, body, define

pytestmark = pytest.mark.usefixtures("warm_workers")

X = torch.tensor([1.0, 2.0])
OPTIONS = Options(device="cpu", jobs=1)


@pytest.fixture
def build(store: Store) -> StoreBuilder:
    return StoreBuilder(store)


def replayed(store: Store, **selection: Any) -> ReplaySummary:
    return replay(store, Selection(**selection), OPTIONS)


def rows(store: Store, query: str, *values: Any) -> list[sqlite3.Row]:
    with closing(store.read()) as connection:
        return connection.execute(query, values).fetchall()


def last_run(store: Store) -> sqlite3.Row:
    return rows(store, "SELECT * FROM run ORDER BY id DESC LIMIT 1")[0]


def statuses(store: Store, run_id: int) -> dict[str, str]:
    query = "SELECT definition, status FROM replay WHERE run_id = ?"
    return {row["definition"]: row["status"] for row in rows(store, query, run_id)}


def test_each_output_of_each_capture_becomes_rows(store: Store, build: StoreBuilder) -> None:
    reference = "def run(x):\n    return x * 2, x + 10\n"
    two = define(name="two", reference=reference, outputs=("output", "new_state"))
    build.add(two, {"x": X}, {"output": X * 2, "new_state": X + 11})
    summary = replayed(store)
    assert summary.status == "failed"
    verdict = rows(store, "SELECT * FROM replay")[0]
    assert verdict["status"] == "failed"
    assert verdict["reason"].startswith("new_state: 2 of 2 elements differ, worst at [0]")
    assert verdict["capture_id"] is not None and verdict["definition_id"] is not None
    outputs = rows(store, "SELECT * FROM replay_output ORDER BY ordinal")
    assert [(o["name"], o["passed"], o["mismatched"]) for o in outputs] == [
        ("output", 1, 0),
        ("new_state", 0, 2),
    ]
    assert json.loads(outputs[1]["worst_index"]) == [0]
    assert (outputs[1]["worst_engine"], outputs[1]["worst_reference"]) == ("12", "11")
    assert (last_run(store)["status"], last_run(store)["summary"]) == (
        "failed",
        "0 of 1 passed, 1 failed",
    )


def test_a_verdict_is_committed_as_soon_as_it_falls(store: Store, build: StoreBuilder) -> None:
    double = define()
    for factor in range(3):
        build.add(double, {"x": X * factor}, {"out": X * factor * 2})
    seen = []

    def look(done: int, total: int, _row: ReplayRow) -> None:
        seen.append((done, total, rows(store, "SELECT count(*) FROM replay")[0][0]))

    replay(store, Selection(), OPTIONS, look)
    assert seen == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]


def test_an_interrupted_replay_keeps_what_fell(store: Store, build: StoreBuilder) -> None:
    double = define()
    for factor in range(3):
        build.add(double, {"x": X * factor}, {"out": X * factor * 2})

    def stop(done: int, _total: int, _row: ReplayRow) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(store, Selection(), OPTIONS, stop)
    assert rows(store, "SELECT count(*) FROM replay")[0][0] == 2
    assert last_run(store)["status"] == "interrupted"


def test_what_cannot_be_judged_is_a_row_that_says_why(store: Store, build: StoreBuilder) -> None:
    build.add(define(name="no_output"), {"x": X}, None)
    build.add(define(name="random"), {}, {"out": X}, random=("x",))
    build.add(define(name="absent"), {"x": X * 3}, {"out": X * 6})
    build.add(define(name="gone"), {"x": X * 5}, {"out": X * 10})
    broken = Definition.from_foreign(body("broken", "def run(x:\n"))
    build.add(broken, {"x": X}, {"out": X})
    strange = Definition.from_foreign(body("strange", "def run(x):\n    return x * 7\n"))
    build.add(strange, {"x": X}, {"out": X})
    with closing(store.write()) as connection:
        connection.execute(
            "UPDATE blob SET present = 0, hint = 'run git lfs pull' WHERE sha256 ="
            " (SELECT blob_sha256 FROM workload_input i JOIN workload w ON w.id = i.workload_id"
            " JOIN definition d ON d.id = w.definition_id WHERE d.name = 'absent')"
        )
    gone = rows(
        store,
        "SELECT blob_sha256 FROM workload_input i JOIN workload w ON w.id = i.workload_id"
        " JOIN definition d ON d.id = w.definition_id WHERE d.name = 'gone'",
    )[0][0]
    store.blobs.path(gone).unlink()
    summary = replayed(store)
    reasons = {
        row["definition"]: (row["status"], row["reason"])
        for row in rows(store, "SELECT * FROM replay")
    }
    assert reasons["no_output"] == ("skipped", "no engine output")
    assert reasons["random"] == ("skipped", "input x is random: no value was captured")
    assert reasons["absent"][0] == "error" and "run git lfs pull" in reasons["absent"][1]
    assert reasons["gone"][0] == "error" and "no blob" in reasons["gone"][1]
    assert reasons["broken"][0] == "error" and "not valid Python" in reasons["broken"][1]
    assert reasons["strange"][0] == "error"
    assert "kclab definitions trust" in reasons["strange"][1]
    assert summary.status == "failed"


def test_an_untrusted_reference_never_runs(
    store: Store, build: StoreBuilder, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w')\ndef run(x):\n    return x\n"
    evil = define(name="evil", reference=source)
    untrust(evil.reference_sha256)
    build.add(evil, {"x": X}, {"out": X})
    summary = replayed(store)
    assert not mark.exists()
    assert summary.only_lacking
    trust(evil.reference_sha256)
    replayed(store)
    assert mark.exists()


def test_only_skipped_workloads_end_the_run_as_empty(store: Store, build: StoreBuilder) -> None:
    build.add(define(), {"x": X}, None)
    assert replayed(store).status == "empty"
    assert (last_run(store)["status"], last_run(store)["exit_code"]) == ("empty", 3)


def test_a_damaged_blob_is_an_error_with_both_sizes(store: Store, build: StoreBuilder) -> None:
    build.add(define(), {"x": X}, {"out": X * 2})
    name = rows(store, "SELECT blob_sha256 FROM workload_input")[0][0]
    path = store.blobs.path(name)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    replayed(store)
    reason = rows(store, "SELECT reason FROM replay")[0][0]
    assert f"damaged blob {path}: {size - 4} of {size} bytes" in reason


def test_a_flipped_byte_is_a_damaged_blob_not_a_mismatch(store: Store, build: StoreBuilder) -> None:
    build.add(define(), {"x": X}, {"out": X * 2})
    path = store.blobs.path(rows(store, "SELECT blob_sha256 FROM capture_output")[0][0])
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    replayed(store)
    verdict = rows(store, "SELECT status, reason FROM replay")[0]
    assert verdict["status"] == "error"
    assert "its content has digest" in verdict["reason"]


def test_nothing_in_the_store_is_said(store: Store) -> None:
    with pytest.raises(NothingMatched, match="holds no workload"):
        replayed(store)
    assert last_run(store)["status"] == "empty"


def test_nothing_selected_says_what_there_is(store: Store, build: StoreBuilder) -> None:
    build.add(define(), {"x": X}, {"out": X * 2})
    holds = r"the store holds 1 capture of 1 definition \("
    with pytest.raises(NothingMatched, match=rf"matches --definition gemm\*; {holds}"):
        replayed(store, definitions=("gemm*",))
    with pytest.raises(
        NothingMatched, match=f"matches --workload zz --workload 7, --failed; {holds}"
    ):
        replayed(store, workloads=("zz", "7"), failed=True)
    with pytest.raises(NothingMatched, match=f"matches --until 1970-01-01 .*; {holds}"):
        replayed(store, until=1)


def test_no_database_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissing):
        replayed(Store.at(tmp_path / "kclab.db"))
    assert not (tmp_path / "kclab.db").exists()


@pytest.fixture
def history(store: Store, build: StoreBuilder) -> dict[str, str]:
    """Three captured definitions, of which `good` passed and `bad` failed once."""
    uuids = {
        "good": build.add(define(name="good"), {"x": X}, {"out": X * 2}, captured_us=100),
        "bad": build.add(define(name="bad"), {"x": X}, {"out": X}, captured_us=200),
    }
    replayed(store)
    uuids["new"] = build.add(define(name="new"), {"x": X}, {"out": X * 2}, captured_us=300)
    build.add(define(name="bare"), {"x": X}, None)
    return uuids


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (lambda h: {}, {"good", "bad", "new", "bare"}),
        (lambda h: {"definitions": ("go*", "new")}, {"good", "new"}),
        (lambda h: {"workloads": (h["bad"][:10].upper(),)}, {"bad"}),
        (lambda h: {"workloads": ("00000002",)}, {"new"}),  # a receipt's own uuid
        (lambda h: {"since": 200, "until": 300}, {"bad"}),
        (lambda h: {"never_passed": True}, {"bad", "new"}),
        (lambda h: {"failed": True}, {"bad"}),
        (lambda h: {"run": "last"}, {"new"}),
        (lambda h: {"never_passed": True, "definitions": ("b*",)}, {"bad"}),
    ],
)
def test_conditions_choose(
    store: Store,
    history: dict[str, str],
    selection: Callable[[dict[str, str]], dict[str, Any]],
    chosen: set[str],
) -> None:
    summary = replayed(store, **selection(history))
    assert set(statuses(store, summary.run_id)) == chosen


def test_a_capture_that_passes_again_is_not_failed_any_more(
    store: Store, history: dict[str, str]
) -> None:
    with closing(store.write()) as connection:
        connection.execute(
            "INSERT INTO replay(run_id, subject, definition, capture_id, imported, status,"
            " started_us)"
            " SELECT run_id, subject, definition, capture_id, 0, 'passed', started_us + 1"
            " FROM replay WHERE definition = 'bad'"
        )
    with pytest.raises(NothingMatched):
        replayed(store, failed=True)


def test_scalars_reach_the_reference_as_they_were(store: Store, build: StoreBuilder) -> None:
    source = "def run(x, s):\n    assert type(s) is float\n    return x * s\n"
    parts = body("scaled", source)
    parts["inputs"] = {**parts["inputs"], "s": {"shape": None, "dtype": "float32"}}
    definition = Definition.from_body(parts)
    trust(definition.reference_sha256)
    build.add(definition, {"x": X, "s": 3.0}, {"out": X * 3})
    assert replayed(store).status == "passed"


def test_the_oracle_is_stored_beside_the_output(store: Store, build: StoreBuilder) -> None:
    wrong = X * 2
    wrong[1] += 0.5
    build.add(define(), {"x": X}, {"out": wrong})
    replay(store, Selection(), Options(device="cpu", jobs=1, oracle=True))
    oracle = rows(store, "SELECT * FROM oracle_output")[0]
    assert (oracle["verdict"], oracle["ordinal"]) == ("engine", 0)
    assert oracle["engine_max_abs"] == 0.5
    assert json.loads(oracle["metrics"])["engine"]["index"] == [1]


def test_a_weak_pass_carries_its_warning(store: Store, build: StoreBuilder) -> None:
    build.add(define(), {"x": X * 1e-9}, {"out": X * 0})
    summary = replayed(store)
    assert summary.status == "passed"
    warning = rows(store, "SELECT warning FROM replay")[0][0]
    assert "expected magnitude below atol" in warning
    assert "relative RMS error 1" in warning


def test_missing_and_miscounted_outputs_fail(store: Store, build: StoreBuilder) -> None:
    both = define(name="both", reference="def run(x):\n    return x, x\n", outputs=("a", "b"))
    one = define(name="one", reference="def run(x):\n    return x\n", outputs=("a", "b"))
    build.add(both, {"x": X}, {"a": X})
    build.add(one, {"x": X}, {"a": X, "b": X})
    replayed(store)
    reasons = {r["definition"]: r["reason"] for r in rows(store, "SELECT * FROM replay")}
    assert reasons["both"] == "b: the engine's output was not captured"
    assert "returned 1 output, the definition has 2" in reasons["one"]
