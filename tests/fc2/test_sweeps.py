"""Sweeps of several boundaries, one after the other: a run each, and one that tells of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from kclab.db.store import Store
from kclab.fc2.sweeps import Swept, exit_code_of
from tests.conftest import Cli

QUICK = ("--backend", "cpu", "--until", "heuristics", "--format", "json")
RUNS = (
    "SELECT r.mode, r.status, p.mode, r.summary, r.params FROM run r"
    " LEFT JOIN run p ON p.id = r.parent_id ORDER BY r.id"
)


@pytest.fixture
def fc2(invoke: Cli, store: Store) -> Callable[..., Any]:
    def run(*argv: object) -> Any:
        return invoke("--db", store.database, "fc2", *argv)

    return run


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with closing(store.read()) as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_several_shapes_are_swept_one_after_the_other(
    fc2: Callable[..., Any], store: Store
) -> None:
    done = fc2("sweep", "--shape", "16x32x64", "--shape", "8x16x32", *QUICK)
    assert done.code == 0, done.err
    assert {row["shape"] for row in json.loads(done.out)} == {"16x32x64", "8x16x32"}
    assert "1 of 2: 16x32x64 bf16: " in done.err and "2 of 2: 8x16x32 bf16: " in done.err
    above, *each = rows(store, RUNS)
    assert above[:4] == ("sweeps", "passed", None, "2 of 2 boundaries swept")
    assert [row[:3] for row in each] == [("sweep", "passed", "sweeps")] * 2
    assert [json.loads(row[4])["shape"] for row in each] == ["16x32x64", "8x16x32"]


def test_one_that_cannot_be_swept_keeps_no_other_from_its_turn(
    fc2: Callable[..., Any], store: Store
) -> None:
    fc2("capture", "--shape", "16x32x64", "--backend", "cpu")
    fc2("capture", "--shape", "8x16x32", "--backend", "cpu")
    (sha256,) = rows(
        store,
        "SELECT i.blob_sha256 FROM workload_input i JOIN fc2_boundary b USING (workload_id)"
        " WHERE b.m = 16 AND i.name = 'weight'",
    )[0]
    store.blobs.path(sha256).unlink()
    done = fc2("sweep", "--all", *QUICK)
    assert done.code == 4
    assert {row["shape"] for row in json.loads(done.out)} == {"8x16x32"}
    assert ": no file " in done.err
    (above,) = [row for row in rows(store, RUNS) if row[0] == "sweeps"]
    assert above[1::2] == ("failed", "1 of 2 boundaries swept")


def test_a_single_shape_is_one_run(fc2: Callable[..., Any], store: Store) -> None:
    assert fc2("sweep", "--shape", "8x16x32", *QUICK).code == 0
    (only,) = rows(store, RUNS)
    assert only[:3] == ("sweep", "passed", None)
    assert json.loads(only[4])["shape"] == "8x16x32"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("last", "--shape", "8x16x32"), "only one of these"),
        (("--all", "--shape", "8x16x32"), "only one of these"),
        (("--all", "--output", "a.json"), "--output takes one boundary"),
        (("--all", "--resume", "--ray", "local"), "--resume asks this store"),
    ],
)
def test_what_cannot_go_together_is_said(
    fc2: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    done = fc2("sweep", *words, *QUICK)
    assert done.code == 2 and said in done.err


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 4), 4), ((4, 4), 4), ((4, 3), 1), ((1, 0), 1)]
)
def test_the_exit_code_is_what_the_failures_share(codes: tuple[int, ...], code: int) -> None:
    assert exit_code_of([Swept("", None, "", each) for each in codes]) == code
