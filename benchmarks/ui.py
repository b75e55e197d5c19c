"""`kclab ui` on 100,000 runs, in a real terminal: its first screen, and how soon a key is answered.

A key's baseline is the same key on 1,000 runs: the ratio says how little the number matters.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.big_database import build
from benchmarks.measure import Result, paired, seconds
from benchmarks.terminal import Terminal
from kclab.cli.show import short_run
from kclab.db.queries.run_pages import ORDERS, RunListing
from kclab.db.queries.runs import RunFilter, list_runs
from kclab.db.store import Store

MANY, FEW = 100_000, 1_000

ROWS = 18
"""That 80x24 shows of the list."""


class Opened:
    """The app on a database, its runs' names known in order."""

    def __init__(self, database: Path) -> None:
        self.argv = [sys.executable, "-m", "kclab", "--db", str(database), "ui"]
        with closing(Store.at(database).read()) as connection:
            self.runs = [short_run(row["uuid"]) for row in list_runs(connection, RunFilter())]
            self.first = [
                short_run(RunListing(RunFilter(sort=order)).page(connection, None)[0]["uuid"])
                for order in ORDERS
            ]
            """Of each order, in that in which a key leads through them."""
        self.terminal = Terminal(self.argv)
        self.terminal.seconds_until(self.runs[0], self.terminal.began)
        self.terminal.settle(1.0)
        self.at = 0

    def first_screen(self) -> float:
        """Seconds from the start of the process to the newest run on the screen."""
        with Terminal(self.argv) as terminal:
            return terminal.seconds_until(self.runs[0], terminal.began)

    def key(self, key: str) -> float:
        """Seconds from a key to the row that it leads to on the screen."""
        self.at += {"down": 1, "pagedown": ROWS}[key]
        began = self.terminal.press(key)
        took = self.terminal.seconds_until(self.runs[self.at], began)
        self.terminal.settle(0.05)
        return took

    def sort(self) -> float:
        """Seconds from the key that sorts by the next column to that order's first run.

        The order whose first run is on top already takes part, but cannot be timed.
        """
        took = []
        for last, first in zip(self.first, [*self.first[1:], self.first[0]], strict=True):
            began = self.terminal.press("s")
            if first != last:
                took.append(self.terminal.seconds_until(first, began))
            self.terminal.settle(0.3)
        self.at = 0
        return max(took)

    def jump(self) -> float:
        """Seconds from the end key to the last run, of which nothing was read before."""
        with Terminal(self.argv) as terminal:
            terminal.seconds_until(self.runs[0], terminal.began)
            terminal.settle(1.0)
            return terminal.seconds_until(self.runs[-1], terminal.press("end"))

    def filtered(self) -> float:
        """Seconds from a text that occurs nowhere to its answer, the pause included."""
        self.terminal.press("/")
        self.terminal.settle(0.05)
        began = self.terminal.press("q")
        took = self.terminal.seconds_until("matching", began)
        self.terminal.settle(0.3)
        self.terminal.press("escape")
        self.terminal.settle(0.3)
        began = self.terminal.press("x")
        self.terminal.seconds_until(f"{len(self.runs):,} runs", began)
        self.terminal.settle(0.3)
        self.at = 0
        return took


def ui(scratch: Path, keys: int) -> Iterator[Result]:
    """The first screen, then single keys, jumps and a filter."""
    scratch.mkdir(parents=True, exist_ok=True)
    opened = []
    for name, runs in (("few", FEW), ("many", MANY)):
        build(scratch / f"{name}.db", runs, samples=10_000)
        opened.append(Opened(scratch / f"{name}.db"))
    few, many = opened
    yield paired(
        f"kclab ui on {MANY:,} runs, first screen",
        "python -c pass",
        "≤ 1,500 ms",
        lambda: seconds(_nothing),
        many.first_screen,
        pairs=max(keys // 10, 3),
    )
    for key, target in (("down", "≤ 100 ms"), ("pagedown", "≤ 100 ms")):
        yield paired(
            f"kclab ui on {MANY:,} runs, {key}", f"on {FEW:,} runs", target,
            lambda key=key: few.key(key), lambda key=key: many.key(key), pairs=keys,
        )  # fmt: skip
    yield paired(
        f"kclab ui on {MANY:,} runs, s: the slowest of all orders", f"on {FEW:,} runs",
        "≤ 100 ms", few.sort, many.sort, pairs=max(keys // 10, 3),
    )  # fmt: skip
    yield paired(
        f"kclab ui on {MANY:,} runs, end, for the first time", f"on {FEW:,} runs", "≤ 100 ms",
        few.jump, many.jump, pairs=max(keys // 10, 3),
    )  # fmt: skip
    yield paired(
        f"kclab ui on {MANY:,} runs, a text filter with its pause", f"on {FEW:,} runs",
        "≤ 600 ms", few.filtered, many.filtered, pairs=max(keys // 10, 3),
    )  # fmt: skip
    for one in opened:
        one.terminal.__exit__()


def _nothing() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)
