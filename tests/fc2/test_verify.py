"""Verifying stored results, and comparing two runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from kclab.db.store import Store
from tests.conftest import Cli

SHAPE = ("--shape", "10x32x96", "--backend", "cublaslt", "--until", "heuristics")


@pytest.fixture
def fc2(invoke: Cli, store: Store, fake_environment: dict[str, str]) -> Callable[..., Any]:
    def run(*argv: object) -> Any:
        return invoke("--db", store.database, "fc2", *argv)

    run("sweep", *SHAPE)
    return run


def change(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute(statement)


def verified(fc2: Callable[..., Any]) -> tuple[int, dict[str, Any]]:
    ended = fc2("verify", "--format", "json")
    (row,) = json.loads(ended.out)
    return ended.code, row


def test_unchanged_machine_holds(fc2: Callable[..., Any]) -> None:
    code, row = verified(fc2)
    assert code == 0 and row["holds"] and row["accepted"] and row["same_bytes"]
    assert row["same_kernel"] and row["moved"] == []


def test_moved_driver_is_named_and_still_holds(fc2: Callable[..., Any], store: Store) -> None:
    change(store, "UPDATE fc2_validity SET facts = json_set(facts, '$.driver', '12000')")
    code, row = verified(fc2)
    assert code == 0 and row["moved"] == ["driver: 13000 here, 12000 stored"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE fc2_launch SET kernel = 'gone'", "instead of gone"),
        ("UPDATE fc2_result SET output_sha256 = 'ff'", "other bytes than were stored"),
        ("UPDATE fc2_result SET ratio = ratio * 1.2 WHERE NOT is_control", "where +26."),
        ("UPDATE algo_config SET tile_id = 18 WHERE tile_id = 22", "tile is not built"),
    ],
)
def test_what_no_longer_holds_is_said(
    fc2: Callable[..., Any], store: Store, statement: str, reason: str
) -> None:
    change(store, statement)
    code, row = verified(fc2)
    assert code == 1 and not row["holds"]
    assert reason in "; ".join(row["reasons"])


def test_nothing_stored_is_nothing_verified(invoke: Cli, store: Store) -> None:
    assert invoke("--db", store.database, "fc2", "verify").code == 3


def test_two_runs_are_compared_by_config(
    fc2: Callable[..., Any], invoke: Cli, store: Store
) -> None:
    fc2("sweep", *SHAPE)
    runs = json.loads(invoke("--db", store.database, "runs", "list", "--format", "json").out)
    ended = fc2("compare", runs[1]["uuid"], runs[0]["uuid"], "--format", "json")
    rows = json.loads(ended.out)
    assert rows and all(row["same_kernel"] and row["same_key"] for row in rows)
    assert all(row["change"] == pytest.approx(1, abs=0.02) for row in rows)
    assert "read their gains" not in ended.err


def test_runs_of_other_machines_are_flagged(
    fc2: Callable[..., Any], invoke: Cli, store: Store
) -> None:
    change(store, "UPDATE fc2_validity SET sha256 = 'old', cublaslt = '120900'")
    fc2("sweep", *SHAPE)
    runs = json.loads(invoke("--db", store.database, "runs", "list", "--format", "json").out)
    ended = fc2("compare", runs[1]["uuid"], runs[0]["uuid"])
    assert ended.code == 0 and "read their gains, not their times" in ended.err
