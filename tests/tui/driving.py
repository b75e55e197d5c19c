"""Driving the app in tests."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.pilot import Pilot

from kclab.tui import KclabApp
from kclab.tui.run_filter import PAUSE_S

LONGEST_S = 20.0


async def settled(pilot: Pilot[Any]) -> KclabApp:
    """Wait until nothing is asked and all is drawn; returns the app."""
    app = pilot.app
    assert isinstance(app, KclabApp)
    quiet = 0
    async with asyncio.timeout(LONGEST_S):
        while quiet < 3:
            await pilot.pause(0.01)
            quiet = 0 if app.busy else quiet + 1
    return app


async def typed(pilot: Pilot[Any], text: str) -> KclabApp:
    """Type a text into what has the focus, and wait until it has taken effect."""
    await pilot.press(*text)
    await pilot.pause(PAUSE_S + 0.1)
    return await settled(pilot)
