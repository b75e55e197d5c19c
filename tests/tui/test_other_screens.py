"""Replay and FC2: from the overview to what is behind it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rich.console import Console
from textual.widgets import Static

from kclab.db.queries.fc2_samples import best_steps, config_measurements
from kclab.db.store import Store
from kclab.tui import KclabApp
from kclab.tui.bars import StatusLine
from kclab.tui.fc2 import BEST_FIELDS, RivalsScreen
from kclab.tui.history import HistoryScreen
from kclab.tui.result import ResultScreen
from kclab.tui.table import RowTable
from kclab.tui.verdict import VerdictScreen
from tests.tui.driving import settled

MIB = 1 << 20


def test_fast_accumulation_is_told_within_its_column() -> None:
    (field,) = [field for field in BEST_FIELDS if field.key == "numerics"]
    assert field.show is not None
    shown = [field.show(text) for text in ("bf16", "fp8_e4m3", "fp8_e4m3+fast", "nvfp4")]
    assert len(set(shown)) == 4 and max(map(len, shown)) <= field.width


def page(app: KclabApp) -> str:
    """The text of the page that is open."""
    shown: Any = app.screen.query_one("#page", Static).content
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


async def test_failed_cell_leads_to_the_worst_element_and_the_oracle(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in ("2", "down", "enter", "enter"):
            await pilot.press(key)
            app = await settled(pilot)
        assert isinstance(app.screen, VerdictScreen)
        text = page(app)
    for words in (
        "worst element of C", "[3, 7]", "C: the engine is off, the reference is not",
        "12  1,024", "allclose rtol 0.016 atol 0.005",
    ):  # fmt: skip
        assert words in text, text


async def test_next_goes_through_the_list(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in ("2", "down", "down", "enter", "enter"):
            await pilot.press(key)
            app = await settled(pilot)
        first = page(app)
        await pilot.press("n")
        app = await settled(pilot)
        assert page(app) != first
        await pilot.press("p")
        app = await settled(pilot)
        assert page(app) == first


async def test_walking_to_another_column_lists_that_status(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in ("2", "right", "enter"):
            await pilot.press(key)
            app = await settled(pilot)
        rows = app.screen.query_one(RowTable).rows
        assert [rows.row(i)["status"] for i in range(rows.total)] == ["error", "error"]  # type: ignore[index]


def test_best_names_the_budgets_where_the_answer_changes(lab: Store) -> None:
    with closing(lab.read()) as connection:
        steps = best_steps(connection, [0, 4 * MIB, 8 * MIB, 32 * MIB, 64 * MIB])
        any_bytes = best_steps(connection, [0, 32 * MIB], inexact=True)
    assert [(row["m"], row["budget"] // MIB) for row in steps] == [
        (4096, 0), (4096, 4), (4096, 32), (1000, 0), (1000, 32),
    ]  # fmt: skip
    assert (any_bytes[0]["m"], any_bytes[0]["exact"]) == (4096, 0)


def test_history_names_what_changed_in_between(lab: Store) -> None:
    with closing(lab.read()) as connection:
        newest = best_steps(connection, [64 * MIB])[0]["result_id"]
        changes = [row["changed"] for row in config_measurements(connection, newest)]
    assert changes == ["cublaslt 13.1.0 → 13.2.1", None]


async def test_plot_follows_the_cursor(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("3")
        app = await settled(pilot)
        plot = app.screen.query_one("#plot", Static)
        first = plot.content
        await pilot.press("down")
        await settled(pilot)
        assert plot.content is not first


async def test_result_shows_samples_parity_and_the_command_that_repeats_it(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in ("3", "down", "down", "enter"):
            await pilot.press(key)
            app = await settled(pilot)
        assert isinstance(app.screen, ResultScreen)
        text = page(app)
    for words in ("FAST", "+8.6 %", "B:A", "exact", "block", "kclab fc2 selected a1b2c3d4"):
        assert words in text, text


async def test_rivals_and_history_are_a_key_away(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in ("3", "v"):
            await pilot.press(key)
            app = await settled(pilot)
        assert isinstance(app.screen, RivalsScreen)
        assert app.screen.query_one(RowTable).rows.total == 5
        for key in ("escape", "t"):
            await pilot.press(key)
            app = await settled(pilot)
        assert isinstance(app.screen, HistoryScreen)


async def test_database_that_breaks_while_open_is_a_sentence(lab: Store) -> None:
    async with KclabApp(lab).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        lab.database.write_bytes(b"no database any more " * 20_000)
        await pilot.press("2")
        app = await settled(pilot)
        told = str(app.screen.query_one(StatusLine).render())
    assert told.startswith(f"{lab.database}: ")
