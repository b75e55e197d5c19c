"""How FC2 results read in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kclab.cli.output import Column, note
from kclab.cli.show import short, short_run, show_ms, show_time
from kclab.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclab.fc2.search import Event


def show_gain(ratio: float) -> str:
    """`+8.6 %` for a ratio of times of 1.086."""
    return f"{(ratio - 1) * 100:+.1f} %"


def show_bytes(size: int) -> str:
    """A workspace."""
    return format_bytes(size)


def show_exact(value: int) -> str:
    """Whether bytes are the baseline's."""
    return "exact" if value else "differs"


def show_numerics(text: str) -> str:
    """`fp8+fast` for `fp8_e4m3+fast`: FP8 operands are all E4M3 here."""
    return text.replace("_e4m3", "")


def with_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """A result's row with its shape, TFLOP/s over logical rows, interval and parity in words."""
    flops = 2 * row["m"] * row["n"] * row["k"]
    low, high = row["ratio_low"], row["ratio_high"]
    interval = None if low is None or high is None else f"{show_gain(low)} … {show_gain(high)}"
    fast = "+fast" if row["fast_accumulation"] else ""
    different = row["different"]
    parity = "exact" if row["exact"] else f"parity failed ({different} elements)"
    return {
        **row,
        "shape": f"{row['m']}x{row['n']}x{row['k']}",
        "numerics": f"{row['precision']}{fast}",
        "tflops": None if not row["b_ms"] else round(flops / (row["b_ms"] * 1e9), 1),
        "interval": interval,
        "parity": parity,
    }


DRIFT_LIMIT = 0.03
"""A control that changes by more than this between first and last round is told of."""


def note_drift(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say on stderr which measurements saw the control itself change: throttling, or a neighbour.

    Ratios within rounds hold all the same.
    """
    for row in rows:
        if row["drift"] is not None and abs(row["drift"]) > DRIFT_LIMIT:
            note(
                f"result {row['result_id']}: the control drifted by {row['drift'] * 100:+.1f} % "
                "from the first round to the last; look at clocks and temperature."
            )


RESULT_COLUMNS = (
    Column("workload", show=short, spare=3),
    Column("shape", spare=2),
    Column("numerics", "dtype", show=show_numerics, spare=1),
    Column("config"),
    Column("ratio", "gain", show=show_gain, right=True),
    Column("interval", "95 %", hidden=True),
    Column("verdict"),
    Column("parity"),
    Column("required_workspace", "workspace", show=show_bytes, right=True, spare=5),
    Column("a_ms", "A ms", show=show_ms, right=True, spare=11),
    Column("b0_ms", "B0 ms", show=show_ms, right=True, spare=10),
    Column("b_ms", "B ms", show=show_ms, right=True, spare=4),
    Column("tflops", "TFLOP/s", right=True, spare=9),
    Column("wrapper_ratio", "wrapper", show=show_gain, right=True, spare=12),
    Column("drift", show=lambda value: f"{value * 100:+.1f} %", hidden=True),
    Column("gates", spare=8),
    Column("gpu", show=lambda name: name.removeprefix("NVIDIA "), wide=True, spare=6),
    Column("kernel", hidden=True),
    Column("measured_us", "measured", show=show_time, hidden=True),
    Column("run", show=short_run, hidden=True),
    Column("result_id", "result", right=True, spare=7),
)
"""A result of one config."""


def spared(columns: Sequence[Column], **spare: int) -> tuple[Column, ...]:
    """Columns of which some are left out earlier or later than usual, by their keys."""
    return tuple(replace(column, spare=spare.get(column.key, column.spare)) for column in columns)


BEST_COLUMNS = spared(RESULT_COLUMNS, gates=3, workload=4, b_ms=4)
"""The same where results are chosen from: whether the gates passed outlives how it was measured."""

PARETO_COLUMNS = (
    Column("budget", show=show_bytes, right=True),
    *spared(BEST_COLUMNS, parity=3),
)
"""Exact ones, but for `--any`, which JSON tells of as well."""

SCOPE = Column("scope")

CANDIDATE_COLUMNS = (
    Column("config"),
    Column("origin", spare=1),
    Column("status"),
    Column("screen_ratio", "gain", show=show_gain, right=True),
    Column("screen_samples", "n", right=True),
    Column("exact", show=show_exact),
    Column("required_workspace", "workspace", show=show_bytes, right=True, spare=2),
    Column("waves", show=lambda value: f"{value:.1f}", right=True, spare=3),
    Column("grid", spare=5),
    Column("cluster", spare=4),
    Column("kernel", wide=True),
    Column("stream_k", "stream-K", show=lambda value: "yes" if value else "no", spare=6),
    Column("reason", wide=True, sparse=True),
)
"""What a run tried."""


@contextmanager
def shown_race() -> Iterator[Callable[[Event], None]]:
    """A callback that draws the race on stderr; plain lines where stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _sayer()
        return
    from rich.live import Live

    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def draw(event: Event) -> None:
            live.update(_race_table(event))
            if not _between(event):
                live.console.print(f"{event.stage} after {event.seconds:.1f} s: {event.text}")

        yield draw


SAY_EVERY = 5.0
"""Seconds between lines about a stage that goes on, where nothing can be drawn."""


def _between(event: Event) -> bool:
    from kclab.fc2.search.terms import SCREENED

    return event.text == SCREENED


def _sayer() -> Callable[[Event], None]:
    said = 0.0

    def say(event: Event) -> None:
        nonlocal said
        text = event.text
        if _between(event):
            if event.seconds < said + SAY_EVERY:
                return
            text = f"{event.configs} configs, {event.launches} distinct launches so far"
        said = event.seconds
        note(f"{event.stage} after {event.seconds:.1f} s: {text}")

    return say


def _race_table(event: Event) -> Any:
    from rich.table import Table

    title = f"{event.stage} · {event.seconds:.0f} s · {event.configs} configs"
    table = Table(title=f"{title} · {event.launches} launches", title_justify="left", box=None)
    for heading in ("config", "against rank 0", "bytes"):
        table.add_column(heading)
    words = {True: "exact", False: "differs", None: "not looked at"}
    for config, ratio, exact in event.leaders:
        table.add_row(config, show_gain(ratio), words[exact])
    return table
