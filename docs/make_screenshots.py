"""Write docs/images/ui-*.svg: `python -m docs.make_screenshots`. A fixed store, a fixed clock."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from kclab.db.migrate import ensure_current
from kclab.db.store import Store
from kclab.tui import KclabApp
from tests.cli.sample import NOW
from tests.tui.driving import settled
from tests.tui.sample import fill

IMAGES = Path(__file__).resolve().parent / "images"

SHOTS = {
    "runs": ("space", "down", "space"),
    "run": (*["down"] * 5, "enter"),
    "compare": (*["down"] * 8, "space", "up", "up", "space", "c"),
    "replay": ("2",),
    "verdict": ("2", "enter", "enter"),
    "fc2": ("3", "down", "down"),
    "fc2-history": ("3", "down", "down", "t"),
}
"""name: the keys that lead there."""


async def shoot(store: Store, keys: tuple[str, ...], width: int, height: int) -> str:
    """The screen after these keys, as SVG."""
    app = KclabApp(store)
    async with app.run_test(size=(width, height)) as pilot:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        return app.export_screenshot(title="kclab ui")


def main() -> None:
    """Write all of them."""
    os.environ |= {"KCLAB_NOW": NOW, "TZ": "UTC"}
    time.tzset()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the screens name the database from here
        store = Store.at(Path("kclab.db"))
        ensure_current(store.database)
        fill(store)
        for name, keys in SHOTS.items():
            svg = asyncio.run(shoot(store, keys, 96, 26))
            (IMAGES / f"ui-{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
