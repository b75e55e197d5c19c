"""The Runs screen filters, compares and follows the database, and is in nobody's way."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from textual import events
from textual.widgets import Static

from kclab.db.connection import writing
from kclab.db.store import Store
from kclab.tui import KclabApp
from kclab.tui.bars import StatusLine
from kclab.tui.compare import CompareScreen, DiffScreen
from kclab.tui.run import RunScreen
from kclab.tui.runs import RunsScreen
from kclab.tui.table import RowTable
from kclab.tui.verdicts import VerdictsScreen
from tests.cli.sample import CAPTURE_A, CAPTURE_B, DEAD, NOW_US, REPLAY_B
from tests.tui.driving import settled, typed
from tests.tui.test_paging import add_runs

Pilot = Any


def told(app: KclabApp) -> str:
    """What the status line says."""
    return str(app.screen.query_one(StatusLine).render())


def listed(app: KclabApp) -> list[str]:
    """The uuids of the list, all of which must be here."""
    rows = app.screen.query_one(RowTable).rows
    return [row["uuid"] for i in range(rows.total) if (row := rows.row(i)) is not None]


async def test_run_whose_process_is_gone_shows_as_stale(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        app = await settled(pilot)
        rows = app.screen.query_one(RowTable).rows
        found = {row["uuid"]: row["status"] for i in range(rows.total) if (row := rows.row(i))}
    assert found[DEAD] == "stale"


@pytest.mark.parametrize(
    ("box", "text", "expected"),
    [
        ("status", "sta", [DEAD]),
        ("tag", "keep", [CAPTURE_A]),
        ("text", "1 of 2", [REPLAY_B]),
        ("text", REPLAY_B[:15].upper(), [REPLAY_B]),
    ],
)
async def test_filter_finds(lab: Store, box: str, text: str, expected: list[str]) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        app = await settled(pilot)
        app.screen.query_one(f"#{box}").focus()
        app = await typed(pilot, text)
        assert listed(app) == expected
        assert told(app).startswith("1 run matching")


async def test_since_understands_words_and_says_the_instant(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        app = await settled(pilot)
        app.screen.query_one("#since").focus()
        app = await typed(pilot, "today")
        assert told(app) == "6 runs matching · since 2026-11-30 00:00"


@pytest.mark.parametrize(
    ("box", "text", "sentence"),
    [
        ("since", "tomorro", '"tomorro" is not a time'),
        ("status", "broken", 'no status begins with "broken"; there are running, passed'),
        ("command", "zzz", 'no command begins with "zzz"; there are benchmark, capture'),
    ],
)
async def test_filter_without_sense_is_told_in_a_sentence(
    lab: Store, box: str, text: str, sentence: str
) -> None:
    async with KclabApp(lab).run_test(size=(120, 24)) as pilot:
        app = await settled(pilot)
        app.screen.query_one(f"#{box}").focus()
        app = await typed(pilot, text)
        assert told(app).startswith(sentence)
        assert len(listed(app)) == 10


async def test_clearing_the_filter_shows_every_run(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("slash")
        await typed(pilot, "timings")
        await pilot.press("escape", "x")
        app = await typed(pilot, "g")
        assert len(listed(app)) == 10
        assert told(app) == "10 runs"


def spread_durations(store: Store) -> None:
    """No two runs take equally long, and not in the order in which they started."""
    with closing(store.write()) as connection, writing(connection):
        connection.execute(
            "UPDATE run SET finished_us = started_us + (id * 7 % 11 + 1) * 1000000"
            " WHERE finished_us IS NOT NULL"
        )


def column(app: KclabApp, key: str) -> list[Any]:
    """One field of every row of the list."""
    rows = app.screen.query_one(RowTable).rows
    return [row[key] for i in range(rows.total) if (row := rows.row(i)) is not None]


@pytest.mark.parametrize(
    ("keys", "key", "descending", "sorted_by"),
    [
        ("", "started_us", True, ("started_us", False)),
        ("s", "took_us", True, ("took_us", False)),
        ("sS", "took_us", False, ("took_us", True)),
        ("ss", "command", False, ("command", True)),
        ("ssss", "started_us", True, ("started_us", False)),
        ("S", "started_us", False, ("started_us", True)),
    ],
)
async def test_keys_sort_the_runs(
    lab: Store, keys: str, key: str, descending: bool, sorted_by: tuple[str, bool]
) -> None:
    spread_durations(lab)
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*keys)
        app = await settled(pilot)
        assert column(app, key) == sorted(column(app, key), reverse=descending)
        assert len(listed(app)) == 10
        assert app.screen.query_one(RowTable).sorted_by == sorted_by


async def test_filter_keeps_the_order_and_is_still_called_one(lab: Store) -> None:
    spread_durations(lab)
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("s", "slash")
        app = await typed(pilot, "capt")
        assert told(app) == "4 runs matching"
        assert column(app, "took_us") == sorted(column(app, "took_us"), reverse=True)
        await pilot.press("escape", "x")
        app = await typed(pilot, "g")
        assert told(app) == "10 runs"
        assert column(app, "took_us") == sorted(column(app, "took_us"), reverse=True)


async def test_key_typed_right_behind_the_slash_is_text_and_does_not_quit(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        app = await settled(pilot)
        for key in "/q":
            app.post_message(events.Key({"/": "slash"}.get(key, key), key))
        await pilot.pause(0.5)
        app = await settled(pilot)
        assert told(app) == "0 runs matching"


async def test_two_marked_runs_are_compared_in_the_order_of_their_marks(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 8, "space", "up", "up", "space", "c")
        app = await settled(pilot)
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert (screen.first, screen.second) == (CAPTURE_A, CAPTURE_B)
        assert "other environment: torch 2.13.0 / 2.14.0" in str(
            screen.query_one("#pair", Static).render()
        )
        changes = [row["change"] for row in screen.query_one(RowTable).rows.rows]  # type: ignore[attr-defined]
        assert changes == ["changed", "vanished"]


async def test_one_mark_goes_with_the_run_under_the_cursor(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 8, "space", "up", "up", "d")
        app = await settled(pilot)
        assert isinstance(app.screen, DiffScreen)
        assert (app.screen.first, app.screen.second) == (CAPTURE_A, CAPTURE_B)


async def test_compared_verdict_leads_to_its_definitions_verdicts(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 6, "space", "up", "up", "space", "c")
        await settled(pilot)
        await pilot.press("enter")
        app = await settled(pilot)
        assert isinstance(app.screen, VerdictsScreen)
        assert told(app) == "2 verdicts · dense_gemm_bf16_nt_n64_k32 · run 019ad3f3-0002"


async def test_compared_timings_show_gain_and_interval(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 4, "space", "up", "up", "space", "c")
        app = await settled(pilot)
        line = app.screen.query_one(RowTable).render_line(1).text
        assert line.split()[:3] == ["worse", "replay", "4000"]
        assert line.rstrip().endswith("-8.8 % (-10.5 … -7.1)")


async def test_difference_that_is_cut_is_told_whole(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 8, "space", "up", "up", "d")
        await settled(pilot)
        await pilot.press("enter")
        app = await settled(pilot)
        (toast,) = app._notifications
        assert toast.message.startswith("A ") and "\nB " in toast.message


async def test_compare_without_marks_says_what_to_do(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("c")
        app = await settled(pilot)
        assert told(app) == "mark two runs with the space bar first: A, then B."


async def test_enter_opens_the_run(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*["down"] * 5, "enter")
        app = await settled(pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.uuid == REPLAY_B
        await pilot.press("escape")
        app = await settled(pilot)
        assert isinstance(app.screen, RunsScreen)


async def until(app: KclabApp, pilot: Pilot, held: Any) -> None:
    async with asyncio.timeout(10):
        while not held(app):
            await pilot.pause(0.05)


async def test_new_run_appears_by_itself_and_the_cursor_stays_on_its_row(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("down", "down")
        app = await settled(pilot)
        await pilot.pause(1.2)  # one look at data_version, to have something to compare with
        table = app.screen.query_one(RowTable)
        before = table.row
        with closing(lab.write()) as connection, writing(connection):
            connection.execute(
                "INSERT INTO run(uuid, command, status, started_us, heartbeat_us, pid,"
                " environment_id, argv, params) VALUES"
                " ('01ffffff-0000-7000-8000-000000000001', 'replay', 'passed', ?, ?, 1, 1, '[]',"
                " '{}')",
                (NOW_US - 1000, NOW_US),
            )
        await until(app, pilot, lambda app: table.rows.total == 11)
        await settled(pilot)
        assert before is not None and table.row is not None
        assert table.row["uuid"] == before["uuid"]
        assert table.cursor == 3


async def test_writers_meet_no_reader_while_it_is_open(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        for key in ("2", "3", "1"):
            await settled(pilot)
            await pilot.press(key)
        await settled(pilot)
        with closing(sqlite3.connect(lab.database, timeout=0, isolation_level=None)) as writer:
            writer.execute("UPDATE run SET note = 'written'")
            busy, *_ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0  # a reader with an open transaction would have held the log


async def test_last_of_many_runs_is_a_key_away(store: Store, fixed_clock: None) -> None:
    add_runs(store, range(3000))
    async with KclabApp(store).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("end")
        app = await settled(pilot)
        row = app.screen.query_one(RowTable).row
        assert row is not None and row["summary"] == "row 0"
        await pilot.press("pageup")
        app = await settled(pilot)
        row = app.screen.query_one(RowTable).row
        assert row is not None and row["summary"] == "row 18"


async def test_palette_opens_a_run_by_its_text(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+p")
        await typed(pilot, "1 of 2 failed")
        await pilot.pause(0.3)
        await pilot.press("enter")
        app = await settled(pilot)
        await pilot.pause(0.3)
        assert isinstance(app.screen, RunScreen) and app.screen.uuid == REPLAY_B


async def test_palette_sorts_the_runs_from_anywhere(lab: Store) -> None:
    spread_durations(lab)
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("3", "ctrl+p")
        await typed(pilot, "Sort runs by took")
        await pilot.pause(0.3)
        await pilot.press("enter")
        app = await settled(pilot)
        await pilot.pause(0.3)
        assert isinstance(app.screen, RunsScreen)
        assert column(app, "took_us") == sorted(column(app, "took_us"), reverse=True)
