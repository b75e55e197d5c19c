"""What every screen looks like, at 80x24 and wider; `--snapshot-update` takes new pictures."""

from __future__ import annotations

from typing import Any

import pytest

from kclab.db.store import Store
from kclab.tui import KclabApp
from tests.tui.driving import settled, typed

SIZES = {"80x24": (80, 24), "120x36": (120, 36)}

SCREENS = {
    "runs": (),
    "runs-marked": ("space", "down", "space"),
    "runs-by-duration": ("s", "down"),
    "run": (*["down"] * 5, "enter"),
    "compare": (*["down"] * 8, "space", "up", "up", "space", "c"),
    "compare-timings": (*["down"] * 4, "space", "up", "up", "space", "c"),
    "diff": (*["down"] * 8, "space", "up", "up", "space", "d"),
    "replay": ("2",),
    "verdicts": ("2", "down", "down", "enter"),
    "verdict": ("2", "down", "enter", "enter"),
    "fc2": ("3", "down", "down"),
    "fc2-rivals": ("3", "v"),
    "fc2-result": ("3", "down", "down", "enter"),
    "fc2-history": ("3", "down", "down", "t"),
    "help": ("question_mark",),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_screen_looks_as_it_did(lab: Store, snap_compare: Any, name: str, size: str) -> None:
    async def drive(pilot: Any) -> None:
        await settled(pilot)
        for key in SCREENS[name]:
            await pilot.press(key)
            await settled(pilot)

    assert snap_compare(KclabApp(lab), terminal_size=SIZES[size], run_before=drive)


def test_filtered_runs_look_as_they_did(lab: Store, snap_compare: Any) -> None:
    async def drive(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("f", "tab")
        await typed(pilot, "st")

    assert snap_compare(KclabApp(lab), terminal_size=(80, 24), run_before=drive)


def test_without_colour_nothing_is_lost(
    lab: Store, snap_compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(KclabApp(lab), terminal_size=(80, 24), run_before=settled)


def test_empty_store_says_so(
    store: Store, fixed_clock: None, snap_compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.database.parent)
    assert snap_compare(KclabApp(store), terminal_size=(80, 24), run_before=settled)
