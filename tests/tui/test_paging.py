"""Listings by pages say what whole listings say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from kclab.db.connection import writing
from kclab.db.queries.paging import PAGE
from kclab.db.queries.run_pages import ORDERS, RunListing
from kclab.db.queries.runs import RunFilter, list_runs
from kclab.db.queries.verdict_matrix import VerdictListing, verdict_matrix
from kclab.db.runs import add_environment
from kclab.db.store import Store

RUNS = 2 * PAGE + 50
HERE_US = 1_790_000_000_000_000


def add_runs(store: Store, numbers: range) -> None:
    """Runs of which every second started in the same microsecond as the one before."""
    with closing(store.write()) as connection, writing(connection):
        environment = add_environment(connection, {"os": "Linux", "python": "3.11"})
        connection.executemany(
            "INSERT INTO run(uuid, command, status, started_us, finished_us, heartbeat_us, pid,"
            " environment_id, argv, params, summary) VALUES (?,?,?,?,?,?,1,?,'[]','{}',?)",
            [
                (f"{n:08x}-0000-7000-8000-000000000000", ("capture", "replay")[n % 3 == 0],
                 ("passed", "failed")[n % 7 == 0], HERE_US + n // 2 * 1000, HERE_US + n * 1000,
                 HERE_US, environment, f"row {n}")
                for n in numbers
            ],
        )  # fmt: skip


@pytest.fixture
def many(store: Store) -> Iterator[Store]:
    add_runs(store, range(RUNS))
    yield store


@pytest.mark.parametrize(
    "wanted",
    [
        RunFilter(),
        RunFilter(commands=["replay"]),
        RunFilter(statuses=["failed"], text="ROW 1"),
        RunFilter(text="nowhere"),
        RunFilter(since_us=HERE_US + 100_000, until_us=HERE_US + 110_000),
    ],
    ids=["all", "command", "status-and-text", "none", "range"],
)
def test_pages_one_after_another_are_the_listing(many: Store, wanted: RunFilter) -> None:
    listing = RunListing(wanted)
    with closing(many.read()) as connection:
        survey = listing.survey(connection)
        paged = [row for anchor in survey.anchors for row in listing.page(connection, anchor)]
        whole = list_runs(connection, wanted)
    assert survey.total == len(whole)
    assert [row["uuid"] for row in paged] == [row["uuid"] for row in whole]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("50%", 1),
        ("5_%", 0),
        ("a_b", 1),
        ("A_B", 1),
        ("wow!", 1),
        ("%", 1),
        ("!", 1),
        ("row 7", 11),
    ],
)
def test_text_is_looked_for_as_it_is_typed(many: Store, text: str, found: int) -> None:
    with closing(many.write()) as connection, writing(connection):
        connection.execute("UPDATE run SET summary = '50% of a_b, wow!' WHERE id = 3")
    with closing(many.read()) as connection:
        assert len(list_runs(connection, RunFilter(text=text))) == found


def by_order(row: Mapping[str, Any], sort: str) -> Any:
    return row["command" if sort == "command" else "status" if sort == "status" else sort + "_us"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sort", ORDERS)
def test_every_order_has_every_run_once_and_the_newest_of_equals_first(
    many: Store, sort: str, turned: bool
) -> None:
    listing = RunListing(RunFilter(sort=sort), turned)
    with closing(many.read()) as connection:
        survey = listing.survey(connection)
        pages = [listing.page(connection, anchor) for anchor in survey.anchors]
        paged = [row for page in pages for row in page]
        places = [listing.survey(connection, row["anchor"]).position for row in paged[::97]]
        newest_first = list_runs(connection, RunFilter())
    expected = sorted(newest_first, key=lambda row: int(row["uuid"][:8], 16), reverse=True)
    expected.sort(key=lambda row: by_order(row, sort), reverse=not ORDERS[sort])
    if turned:
        expected.reverse()
    assert [row["uuid"] for row in paged] == [row["uuid"] for row in expected]
    assert places == list(range(len(paged)))[::97]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sort", ORDERS)
def test_page_of_any_order_sorts_no_more_than_equals(many: Store, sort: str, turned: bool) -> None:
    listing = RunListing(RunFilter(sort=sort), turned)
    with closing(many.read()) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        for anchor in (None, listing.survey(connection).anchors[-1]):
            listing.page(connection, anchor)
        connection.set_trace_callback(None)
        pages = [sql for sql in asked if "page_key" in sql]
        plans = [str([*map(tuple, connection.execute(f"EXPLAIN QUERY PLAN {p}"))]) for p in pages]
    # What is sorted are a page's own rows, beneath the sub-select that chose them.
    chosen = [plan.partition("SUBQUERY")[2].partition("CORRELATED")[0] for plan in plans]
    assert len(chosen) == 3 and all("ix_run_" in one for one in chosen)
    # Only runs that took the very same time are: SQLite takes an expression for one that may vary
    # even where it must equal a value.
    assert [n for n, one in enumerate(chosen) if "ORDER BY" in one] == [1] * (sort == "took")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sort", ORDERS)
def test_survey_of_any_order_reads_an_index_alone(many: Store, sort: str, turned: bool) -> None:
    with closing(many.read()) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        RunListing(RunFilter(sort=sort), turned).survey(connection)
        connection.set_trace_callback(None)
        (walk,) = (sql for sql in asked if "row_number" in sql)
        plan = str([*map(tuple, connection.execute(f"EXPLAIN QUERY PLAN {walk}"))])
    assert "COVERING INDEX ix_run_" in plan and "ORDER BY" not in plan


def test_position_of_a_row_moves_as_newer_ones_come(many: Store) -> None:
    listing = RunListing(RunFilter())
    with closing(many.read()) as connection:
        row = listing.page(connection, None)[30]
        before = listing.survey(connection, row["anchor"]).position
    add_runs(many, range(RUNS, RUNS + 7))
    with closing(many.read()) as connection:
        after = listing.survey(connection, row["anchor"]).position
    assert (before, after) == (30, 37)


def test_matrix_counts_only_the_last_verdict_of_a_capture(lab: Store) -> None:
    with closing(lab.read()) as connection:
        before = verdict_matrix(connection)[0]
    with closing(lab.write()) as connection, writing(connection):
        connection.execute(
            "INSERT INTO replay(run_id, subject, definition, capture_id, workload_id, status,"
            " started_us, imported) SELECT run_id, subject, definition, capture_id, workload_id,"
            " 'passed', started_us + 1, 0 FROM replay WHERE status = 'failed' AND capture_id > 0"
        )
    with closing(lab.read()) as connection:
        after = verdict_matrix(connection)[0]
    assert (before["passed"], before["failed"]) == (4, 1)
    assert (after["passed"], after["failed"]) == (5, 0)


def test_every_count_of_the_matrix_is_the_length_of_its_list(lab: Store) -> None:
    with closing(lab.read()) as connection:
        for line in verdict_matrix(connection):
            for status in ("passed", "failed", "error", "skipped", "warned"):
                listing = VerdictListing(line["definition"], status)
                assert listing.survey(connection).total == line[status], json.dumps(line)


def test_capture_that_was_never_replayed_waits(lab: Store) -> None:
    with closing(lab.write()) as connection, writing(connection):
        connection.execute("DELETE FROM replay WHERE capture_id = 3")
    with closing(lab.read()) as connection:
        assert verdict_matrix(connection)[0]["waiting"] == 1
