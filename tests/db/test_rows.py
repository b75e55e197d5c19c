"""Content rows are inserted once, whoever brings them, and hold no number that sorts wrongly."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from kclab.db.connection import writing
from kclab.db.rows import BlobRow, InputValue, add_blobs, add_definition, add_workload
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.db.values import to_json
from kclab.db.verdicts import OutputVerdict, ReplayRow, add_replay
from tests.db.filled import BODY, add_example

BLOB = BlobRow("ab" * 32, "float32", (2,), 8)


def counts(connection: sqlite3.Connection, *tables: str) -> list[int]:
    return [connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables]


def test_the_same_example_twice_adds_nothing_but_its_verdict(store: Store) -> None:
    tables = ("definition", "blob", "workload", "workload_input", "request", "capture")
    with run(store, "capture", {}) as active:
        first = add_example(active)
        before = counts(active.connection, *tables, "capture_output")
        assert add_example(active) == first
        assert counts(active.connection, *tables, "capture_output") == before


def test_a_changed_body_is_another_version_of_the_definition(store: Store) -> None:
    with closing(store.write()) as connection, writing(connection):
        one = add_definition(connection, BODY)
        assert add_definition(connection, dict(reversed(BODY.items()))) == one
        assert add_definition(connection, {**BODY, "op_type": "other"}) != one
        found = connection.execute("SELECT body FROM definition WHERE id = ?", (one,)).fetchone()
        assert json.loads(found[0]) == BODY


def test_bytes_that_arrive_make_an_absent_blob_present(store: Store) -> None:
    absent = replace(BLOB, present=False, hint="git lfs pull")
    with closing(store.write()) as connection, writing(connection):
        assert add_blobs(connection, [absent]) == 1
        assert add_blobs(connection, [absent]) == 0
        row = connection.execute("SELECT present, hint FROM blob").fetchone()
        assert tuple(row) == (0, "git lfs pull")
        assert add_blobs(connection, [BLOB], verified_us=7) == 0
        row = connection.execute("SELECT present, hint, verified_us FROM blob").fetchone()
        assert tuple(row) == (1, None, 7)


def test_an_absent_copy_does_not_hide_the_bytes_that_are_here(store: Store) -> None:
    with closing(store.write()) as connection, writing(connection):
        add_blobs(connection, [BLOB])
        add_blobs(connection, [replace(BLOB, present=False, hint="elsewhere")])
        assert tuple(connection.execute("SELECT present, hint FROM blob").fetchone()) == (1, None)


def test_an_input_has_exactly_one_source(store: Store) -> None:
    with closing(store.write()) as connection:
        for value in (InputValue(), InputValue(scalar="1", random="{}")):
            with pytest.raises(sqlite3.IntegrityError, match="one_source"), writing(connection):
                definition = add_definition(connection, BODY)
                add_workload(connection, "w", definition, {"N": 1}, {"x": value})


def test_a_workload_cannot_name_bytes_without_a_blob_row(store: Store) -> None:
    with (
        closing(store.write()) as connection,
        pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"),
        writing(connection),
    ):
        definition = add_definition(connection, BODY)
        add_workload(connection, "w", definition, {"N": 1}, {"x": InputValue(blob="cd" * 32)})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_would_sort_first_become_null(store: Store, bad: float) -> None:
    output = OutputVerdict(
        "out", "float32", False, "allclose", 1, 1, max_abs=bad, rms=1.0, relative_rms=bad
    )
    verdict = ReplayRow("w", "double", "failed", 1, outputs=[replace(output, reason="not finite")])
    with run(store, "replay", {}) as active, writing(active.connection):
        add_replay(active.connection, active.id, verdict)
        row = active.connection.execute(
            "SELECT max_abs, rms, relative_rms, reason FROM replay_output"
        ).fetchone()
    assert tuple(row) == (None, 1.0, None, "not finite")


def test_a_broken_replay_keeps_its_traceback(store: Store) -> None:
    verdict = ReplayRow("w", "double", "error", 1, reason="boom", traceback="Traceback …")
    with run(store, "replay", {}) as active, writing(active.connection):
        add_replay(active.connection, active.id, verdict)
        row = active.connection.execute(
            "SELECT message, traceback FROM error JOIN replay ON error.id = replay.error_id"
        ).fetchone()
    assert tuple(row) == ("boom", "Traceback …")


@pytest.mark.parametrize("status", ["running", "fine", ""])
def test_a_verdict_is_one_of_the_known_words(store: Store, status: str) -> None:
    with (
        pytest.raises(sqlite3.IntegrityError, match="status"),
        run(store, "replay", {}) as active,
        writing(active.connection),
    ):
        add_replay(active.connection, active.id, ReplayRow("w", "double", status, 1))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": float("nan")}, '{"a": "nan"}'),
        ([1, (float("inf"), -float("inf"))], '[1, ["inf", "-inf"]]'),
        ({"a": "\u2028\ud800"}, '{"a": "\\u2028\\ud800"}'),
    ],
    ids=["nan", "nested", "odd text"],
)
def test_structured_columns_are_json_that_sqlite_reads(
    store: Store, value: object, text: str
) -> None:
    assert to_json(value) == text
    with closing(store.read()) as connection:
        assert connection.execute("SELECT json_valid(?)", (text,)).fetchone()[0] == 1
