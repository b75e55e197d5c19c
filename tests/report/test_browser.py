"""The report in a real browser: it draws, complains of nothing, and asks the network nothing."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kclab.db.store import Store
from tests.conftest import Cli

pytestmark = pytest.mark.slow

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@pytest.fixture
def opened(reported: Store, invoke: Cli, tmp_path: Path) -> Path:
    """A folder with the report, its screenshot, the browser's log and its network log."""
    if not BROWSER:
        pytest.skip("needs Chromium: apt-get install chromium")
    assert invoke("report", "-o", "report.html").code == 0
    browse(tmp_path, "report.html")
    return tmp_path


def browse(folder: Path, page: str) -> None:
    # A file rather than a pipe: the browser's helpers may outlive it and keep a pipe open.
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command(folder, page), stdout=log, stderr=log, timeout=90, check=True)


def command(folder: Path, page: str) -> list[str]:
    return [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--no-first-run", "--hide-scrollbars", "--window-size=1200,2600"),
        *("--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"),
        f"--log-net-log={folder / 'net.json'}",
        f"--screenshot={folder / 'page.png'}",
        (folder / page).as_uri(),
    ]


OWN_CHORES = ("google.com", "gvt1.com", "googleapis.com")
"""Where the browser itself calls for its clock, dictionary and account, whatever the page."""


def asked(folder: Path) -> set[str]:
    """Hosts that were asked for something, the browser's own chores aside."""
    log = json.loads((folder / "net.json").read_text())
    hosts = {urlsplit(event.get("params", {}).get("url") or "").hostname for event in log["events"]}
    return {host for host in hosts if host and not host.endswith(OWN_CHORES)}


def complaints(folder: Path) -> list[str]:
    return [line for line in (folder / "log.txt").read_text().splitlines() if "CONSOLE" in line]


def colours(path: Path) -> set[bytes]:
    """Three bytes here and there of an 8-bit PNG's filtered rows: many where much is drawn."""
    data, place, packed = path.read_bytes(), 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += 12 + length
    rows = zlib.decompress(packed)
    return {rows[i : i + 3] for i in range(0, len(rows) - 3, 997)}


def test_it_draws_and_the_console_stays_empty(opened: Path) -> None:
    assert complaints(opened) == []
    assert len(colours(opened / "page.png")) > 20


def test_it_asks_the_network_nothing(opened: Path) -> None:
    assert asked(opened) == set()


def test_a_page_that_complains_and_asks_is_noticed(opened: Path) -> None:
    (opened / "bad.html").write_text(
        "<script>console.error('no')</script><img src='http://127.0.0.1:9/x.png'>"
    )
    browse(opened, "bad.html")
    assert complaints(opened) and asked(opened)
