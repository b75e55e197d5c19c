"""One FC2 result: its samples, how it was judged, and what its bytes and gates say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from textual.binding import Binding, BindingType

from kclab.cli.fc2_show import show_gain, with_text
from kclab.cli.output import Column
from kclab.cli.show import short_run, show_error, show_local, show_ms, show_time
from kclab.core.stats import Sample
from kclab.core.units import format_bytes, format_count
from kclab.db.queries.fc2_samples import ResultDetails, result_details
from kclab.db.queries.run_diff import flattened
from kclab.tui.page import PageScreen, fields_grid, fields_part, lines_part, part, table_part
from kclab.tui.plots import round_plot, strip_plot

PARITY_COLUMNS = (
    Column("subject", "bytes of"),
    Column("exact", show=lambda exact: "exact" if exact else "differs"),
    Column("different", right=True, show=format_count),
    Column("elements", "of", right=True, show=format_count),
    Column("max_abs", "max error", right=True, show=show_error),
    Column("reason", wrap=True, sparse=True),
)
CHECK_COLUMNS = (
    Column("name", "check"),
    Column("passed", show=lambda passed: "passed" if passed else "failed"),
    Column("detail", wrap=True),
)
GATE_COLUMNS = (
    Column("kind", "gate"),
    Column("status"),
    Column("at_us", "when", show=show_time),
    Column("detail", show=json.dumps, wrap=True),
)


@dataclass(frozen=True, slots=True)
class SamplePlots:
    """Strips and rounds, as wide as there is room."""

    samples: list[Sample]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For Rich."""
        yield from strip_plot(self.samples, options.max_width)
        yield from round_plot(self.samples, options.max_width)


class ResultScreen(PageScreen):
    """One FC2 result."""

    PLACE = "fc2"
    ABOUT = (
        "A: the accepted baseline as users call it. B0: the heuristic's first choice through our "
        "runner. B: this config. Every sample is a dot at its time; below, each arm over the "
        "rounds, where a slope is drift. Ratios are medians over pairs."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "rivals", "All verdicts"),
        Binding("t", "history", "History"),
    ]

    def __init__(self, result_id: int) -> None:
        super().__init__()
        self.result_id = result_id

    def on_mount(self) -> None:
        """Read the result."""
        self.asked(lambda c: result_details(c, self.result_id), self._show)

    def _show(self, details: ResultDetails) -> None:
        self.show(_parts(details))
        self.tell(f"result {self.result_id} · {details.result['verdict']}")

    def action_rivals(self) -> None:
        """Every config that was measured on this workload, with its verdict."""
        from kclab.tui.fc2 import RivalsScreen

        self.app.push_screen(RivalsScreen(self.result_id))

    def action_history(self) -> None:
        """Every measurement of this config on this workload."""
        from kclab.tui.history import HistoryScreen

        self.app.push_screen(HistoryScreen(self.result_id))


def _parts(details: ResultDetails) -> Iterator[RenderableType]:
    row = with_text(details.result)
    yield fields_grid(_head(row))
    yield part("samples", SamplePlots(details.samples))
    yield fields_part("ratios", _ratios(row))
    yield from table_part("parity", details.parity, PARITY_COLUMNS)
    yield from table_part("checks", details.checks, CHECK_COLUMNS)
    yield from table_part("gates", details.gates, GATE_COLUMNS)
    yield fields_part("holds for", flattened(row["validity"]))
    yield from lines_part("measure it again", [_again(row)])


def _head(row: Mapping[str, Any]) -> dict[str, Any]:
    supplied = format_bytes(row["supplied_workspace"])
    needed = row["required_workspace"]
    head = {
        "verdict": row["verdict"],
        "gain": f"{show_gain(row['ratio'])}  ({row['interval'] or 'no interval'})"
        if row["ratio"]
        else None,
        "gemm": f"{row['shape']}  {row['numerics']}  workload {row['workload']}",
        "config": row["config"],
        "kernel": row["kernel"],
        "workspace": None if needed is None else f"{format_bytes(needed)} of {supplied} supplied",
        "parity": row["parity"],
        "gates": row["gates"],
        "measured": show_local(row["measured_us"]),
        "run": f"{short_run(row['run'])}, stage {row['stage']}, scope {row['scope']}",
    }
    return {name: value for name, value in head.items() if value}


def _ratios(row: Mapping[str, Any]) -> dict[str, Any]:
    times = (("A", "a_ms", row["baseline"]), ("B0", "b0_ms", "the heuristic's first choice"),
             ("B", "b_ms", "this config"))  # fmt: skip
    told = {
        name: f"{show_ms(row[key])} ms  {what}" for name, key, what in times if row[key] is not None
    }
    gains = (("algorithm, B0 / B", "ratio"), ("wrapper, A / B0", "wrapper_ratio"),
             ("all, A / B", "baseline_ratio"))  # fmt: skip
    told |= {name: show_gain(row[key]) for name, key in gains if row[key] is not None}
    if row["floor"] is not None:
        told["A/A noise"] = f"±{row['floor'] * 100:.2f} %"
    if row["drift"] is not None:
        told["drift"] = f"{row['drift'] * 100:+.1f} % of the control, first to last round"
    return {**told, "pairs": row["pairs"]}


def _again(row: Mapping[str, Any]) -> str:
    return (
        f"kclab fc2 selected {row['workload']} --backend {row['backend']} "
        f"--candidate {row['config']} --workspace {row['supplied_workspace']}"
    )
