"""Write docs/images/: `python -m docs.make_screenshots`. A fixed store, a fixed clock.

`ui-*.svg` are kclab ui's screens; `report-*.png` are what a headless Chromium draws of `kclab
report`, its top and its history.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from kclab.db.migrate import ensure_current
from kclab.db.queries.report import Period
from kclab.db.store import Store
from kclab.report import as_html, gather
from kclab.tui import KclabApp
from tests.cli.sample import NOW
from tests.tui.driving import settled
from tests.tui.sample import fill

IMAGES = Path(__file__).resolve().parent / "images"

SHOTS = {
    "runs": ("space", "down", "space"),
    "run": (*["down"] * 5, "enter"),
    "compare": (*["down"] * 4, "space", "up", "up", "space", "c"),
    "replay": ("2",),
    "verdict": ("2", "enter", "enter"),
    "fc2": ("3", "down", "down"),
    "fc2-history": ("3", "down", "down", "t"),
}
"""name: the keys that lead there."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PARTS = {"top": (None, 900), "fc2": ("fc2", 860), "history": ("history", 810)}
"""name: the section that the picture begins with (None for the page's own beginning), height."""
WIDTH = 1160
"""Of the report's pictures, pixels."""


async def shoot(store: Store, keys: tuple[str, ...], width: int, height: int) -> str:
    """The screen after these keys, as SVG."""
    app = KclabApp(store)
    async with app.run_test(size=(width, height)) as pilot:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        return app.export_screenshot(title="kclab ui")


def browse(store: Store, folder: Path) -> None:
    """Pictures of the report's parts, each beginning where its section does."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("pictures of the report need Chromium: apt-get install chromium")
    with closing(store.read()) as connection:
        page = as_html(gather(connection, Period()), store.database.name)
    for name, (section, height) in PARTS.items():
        # Headless Chromium draws a page's beginning: what comes before the section is left out.
        hidden = "" if section is None else f"header, section:not(#{section}) {{ display: none }}"
        (folder / "report.html").write_text(page.replace("</style>", f"{hidden}</style>", 1))
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{height}",
                f"--screenshot={IMAGES / f'report-{name}.png'}",
                (folder / "report.html").as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


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
        browse(store, Path(folder))


if __name__ == "__main__":
    main()
