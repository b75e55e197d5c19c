"""How a finished run is judged: what each process said last, and what became of each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kclab.capture.control import ControlFolder, process_key
from kclab.capture.coverage import Coverage, DefinitionCoverage, run_coverage, uncaptured
from kclab.capture.entries import CountEntry, WorkerEntry, write_entries
from kclab.capture.options import CaptureOptions, check_options, parse_facts, parse_steps
from kclab.capture.settle import WorkerEnd, settle
from kclab.core.errors import BadUsage
from kclab.db.connection import writing
from kclab.db.runs import run
from kclab.db.store import Store

DEAD = "host:999999999:1"
ARMED = {"state": "armed", "acknowledged_us": 5, "rank": 0, "engine": "e", "environment": None}


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    folder = ControlFolder(tmp_path / "run")
    folder.create()
    return folder


ENDS = {
    "drained": (WorkerEnd("p", "drained", 0, False), None),
    "never acknowledged": (WorkerEnd("p", "installing", 0, False), "never acknowledged"),
    "died with captures": (WorkerEnd("p", "armed", 3, False), "died with 3 captures"),
    "stored too little": (WorkerEnd("p", "drained", 2, False), "could not store 2"),
    "died without captures": (WorkerEnd("p", "armed", 0, False), None),
    "still runs": (WorkerEnd("p", "armed", 0, True), "never drained"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_workers_end_is_named_when_it_is_not_clean(case: str) -> None:
    end, words = ENDS[case]
    problem = end.problem()
    assert (problem is None) == (words is None)
    assert words is None or (words in str(problem) and "process p " in str(problem))


def test_a_worker_that_died_before_its_row_was_written_gets_one(
    store: Store, control: ControlFolder
) -> None:
    control.write_worker(DEAD, ARMED)
    progress = control.open_progress(DEAD)
    progress.handed(7)
    progress.given_up(4)
    progress.close()
    with run(store, "capture", {}) as active:
        (end,) = settle(active.connection, active.id, control)
        row = active.connection.execute("SELECT * FROM capture_worker").fetchone()
    assert end.lost == 3
    assert (row["process"], row["acknowledged_us"], row["drained_us"]) == (DEAD, 5, None)
    assert "3 captures not yet stored" in row["note"]


def test_a_worker_that_is_alive_is_not_declared_dead(control: ControlFolder, store: Store) -> None:
    control.write_worker(process_key(), ARMED)
    with run(store, "capture", {}) as active:
        (end,) = settle(active.connection, active.id, control)
    assert end.running


def test_the_workers_environment_becomes_the_runs(control: ControlFolder, store: Store) -> None:
    control.write_worker(DEAD, {**ARMED, "state": "drained", "environment": {"gpu": "H200"}})
    with run(store, "capture", {}) as active:
        settle(active.connection, active.id, control)
        row = active.connection.execute(
            "SELECT e.gpu FROM run r JOIN environment e ON e.id = r.environment_id"
        ).fetchone()
    assert row["gpu"] == "H200"


def test_counts_of_all_processes_add_up(store: Store) -> None:
    counts: list[dict[str, Any]] = [
        {"d": {"seen": 3, "selected": 2, "duplicate": 1, "queue is full": 2}},
        {"d": {"seen": 1}, "aten.bmm": {"batched": 4}},
    ]
    with run(store, "capture", {}) as active:
        with writing(active.connection) as connection:
            for process, entry in enumerate(counts):
                worker = WorkerEntry(str(process), 1)
                write_entries(connection, active.id, [worker, CountEntry(str(process), entry)])
                write_entries(connection, active.id, [CountEntry(str(process), entry)])
        found = run_coverage(active.connection, active.id)
    batched = DefinitionCoverage("aten.bmm", skipped={"batched": 4})
    assert found == [batched, DefinitionCoverage("d", 4, 2, 0, 1, {"queue is full": 2})]


def test_reasons_that_name_sizes_do_not_grow_without_end() -> None:
    coverage = Coverage()
    for size in range(1000):
        coverage.count("d", f"A has size {size}")
    counts = coverage.snapshot()["d"]
    assert len(counts) < 30
    assert sum(counts.values()) == 1000


CAPTURED = DefinitionCoverage("gemm_n3", seen=2, selected=1, captured=1)
REFUSED = DefinitionCoverage("gemm_n4", seen=2, selected=2, skipped={"A is float16": 2})
UNSELECTED = DefinitionCoverage("gemm_n5", seen=9)


def test_a_glob_is_content_with_one_of_its_definitions() -> None:
    assert uncaptured([CAPTURED], ["gemm_*"]) == []


def test_a_name_without_a_capture_says_what_was_seen_instead() -> None:
    (sentence,) = uncaptured([CAPTURED], ["gemm_n3", "attention"])
    assert sentence == "attention: no such call was seen; seen were: gemm_n3."


def test_a_selected_definition_without_a_capture_says_why() -> None:
    (sentence,) = uncaptured([CAPTURED, REFUSED], [])
    assert sentence == "gemm_n4: 2 calls selected, none captured: A is float16 (2)."
    (sentence,) = uncaptured([CAPTURED, REFUSED], ["gemm_n4"])
    assert "A is float16" in sentence


def test_calls_that_were_never_selected_point_at_the_steps() -> None:
    (sentence,) = uncaptured([UNSELECTED], ["gemm_n5"])
    assert "seen 9 times" in sentence
    assert "--steps" in sentence


@pytest.mark.parametrize(
    ("text", "steps"), [(None, None), ("all", None), ("0,4,7", (0, 4, 7)), ("7, 0,7", (0, 7))]
)
def test_steps_are_read_once_at_the_edge(text: str | None, steps: tuple[int, ...] | None) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1.5", "٣"])
def test_steps_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="--steps"):
        parse_steps(text)


def test_facts_keep_their_json_types() -> None:
    facts = parse_facts(["model=Qwen/Qwen-Image-2.1", "sigmas=[1.0, 0.5]", "url=a=b"])
    assert facts == {"model": "Qwen/Qwen-Image-2.1", "sigmas": [1.0, 0.5], "url": "a=b"}


@pytest.mark.parametrize("glob", ["dense_gemm_fp32_nt_n3_k4", "dense_gemm_*", "*", "dense_*_k4"])
def test_a_definition_that_define_missing_could_make_is_accepted(glob: str) -> None:
    check_options(CaptureOptions(definitions=(glob,), define_missing=True))


@pytest.mark.parametrize("glob", ["dense_gemm_fp99_nt_n3_k4", "conv_*"])
def test_a_definition_that_nothing_could_make_is_refused(glob: str) -> None:
    with pytest.raises(BadUsage, match="no definition matches"):
        check_options(CaptureOptions(definitions=(glob,), define_missing=True))


def test_a_definition_that_only_needs_define_missing_is_refused_with_that_word() -> None:
    with pytest.raises(BadUsage, match=r"no definition matches .* --define-missing"):
        check_options(CaptureOptions(definitions=("dense_gemm_fp32_nt_n3_k4",)))
    with pytest.raises(BadUsage) as told:
        check_options(CaptureOptions(definitions=("conv_*",)))
    assert "--define-missing" not in str(told.value)
