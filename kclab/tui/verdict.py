"""One verdict: what is off and by how much, and whose fault the oracle says it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.binding import Binding, BindingType

from kclab.cli.show import (
    short,
    short_run,
    show_axes,
    show_error,
    show_local,
    show_place,
    show_shape,
)
from kclab.cli.table import Column
from kclab.core.units import format_bytes, format_count, format_duration
from kclab.db.queries.verdict_matrix import one_verdict
from kclab.tui.page import PageScreen, fields_grid, fields_part, lines_part, table_part
from kclab.tui.table import RowTable

OUTPUT_COLUMNS = (
    Column("name", "output"),
    Column("dtype"),
    Column("verdict"),
    Column("mismatched", "off", right=True, show=format_count),
    Column("elements", "of", right=True, show=format_count),
    Column("max_abs", "max error", right=True, show=show_error),
    Column("relative_rms", "rel. RMS", right=True, show=show_error),
    Column("tolerance", wrap=True),
)
ORACLE_COLUMNS = (
    Column("name", "output"),
    Column("oracle", "who is off"),
    Column("engine_max_ulp", "engine max ulp", right=True, show=lambda v: f"{v:.3g}"),
    Column("engine_rms_ulp", "rms", right=True, show=lambda v: f"{v:.3g}"),
    Column("reference_max_ulp", "reference max ulp", right=True, show=lambda v: f"{v:.3g}"),
    Column("reference_rms_ulp", "rms", right=True, show=lambda v: f"{v:.3g}"),
    Column("bound_ulp", "rounding may", right=True, show=lambda v: f"{v:.3g}"),
)
INPUT_COLUMNS = (
    Column("name", "input"),
    Column("dtype"),
    Column("shape", show=show_shape),
    Column("nbytes", "size", show=format_bytes, right=True),
    Column("present", "bytes", show=lambda here: "here" if here else "absent"),
    Column("scalar", "value", show=json.dumps, sparse=True),
)

SIDES = {
    "engine": "the engine is off, the reference is not",
    "reference": "the reference is off, the engine is not",
    "both": "both are off",
    "neither": "neither is off: the tolerance is too tight for this rounding",
    "undecided": "undecided",
}
"""The oracle's verdicts in words."""


class VerdictScreen(PageScreen):
    """One verdict, from the worst element to the oracle."""

    PLACE = "replay"
    ABOUT = (
        "worst: the element with the largest error, or the first that is no number. The oracle "
        "computes the operator in float64 and says which side is farther from it than rounding "
        "explains; distances are in ulp, units in the last place of the output's dtype."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next(1)", "Next"),
        Binding("p", "next(-1)", "Previous"),
    ]

    def __init__(self, replay_id: int, table: RowTable) -> None:
        super().__init__()
        self._replay, self._table = replay_id, table

    def on_mount(self) -> None:
        """Read the verdict."""
        self._read()

    def _read(self) -> None:
        self.asked(lambda c: one_verdict(c, self._replay), self._show)

    def _show(self, verdict: Mapping[str, Any]) -> None:
        self.show(_parts(verdict))
        self.tell(f"{self._table.cursor + 1:,} of {self._table.rows.total:,} · {verdict['status']}")

    def action_next(self, step: int) -> None:
        """Go to the list's next, or previous, verdict."""
        self._table.cursor += step
        if self._table.row is not None:
            self._replay = self._table.row["id"]
            self.action_top()
            self._read()


def _parts(verdict: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield fields_grid(_head(verdict))
    outputs = [_output(row) for row in verdict["outputs"]]
    yield from table_part("outputs", outputs, OUTPUT_COLUMNS)
    for row in verdict["outputs"]:
        if row["worst_index"] is not None:
            yield fields_part(f"worst element of {row['name']}", _worst(row))
    yield from _oracle(verdict["outputs"])
    if verdict["error"]:
        yield fields_part("error", {"kind": verdict["error_kind"], "message": verdict["error"]})
    yield from table_part("inputs", verdict["inputs"], INPUT_COLUMNS)
    for row in verdict["outputs"]:
        if row["metrics"]:
            yield fields_part(f"metrics of {row['name']}", row["metrics"])
    yield from lines_part("next", _next_steps(verdict))
    if verdict["traceback"]:
        yield from lines_part("traceback", verdict["traceback"].rstrip().split("\n"))


def _head(verdict: Mapping[str, Any]) -> dict[str, Any]:
    seconds = verdict["seconds"]
    head = {
        "verdict": verdict["status"] + (" (imported)" if verdict["imported"] else ""),
        "reason": verdict["reason"],
        "definition": verdict["definition"],
        "workload": f"{verdict['workload']}  {show_axes(verdict['axes'])}",
        "where": show_place(verdict) if verdict["operation"] else verdict["origin"],
        "captured by": verdict["capture_run"] and f"run {short_run(verdict['capture_run'])}",
        "replayed by": f"run {short_run(verdict['run'])}",
        "when": show_local(verdict["started_us"]),
        "on": verdict["device"],
        "took": None if seconds is None else format_duration(seconds),
    }
    return {name: value for name, value in head.items() if value}


def _output(row: Mapping[str, Any]) -> dict[str, Any]:
    bounds = [f"{n} {row[n]:g}" for n in ("rtol", "atol") if row[n] is not None]
    return {
        **row,
        "verdict": "passed" if row["passed"] else "failed",
        "tolerance": " ".join([row["policy"], *bounds]),
    }


def _worst(row: Mapping[str, Any]) -> dict[str, Any]:
    worst = {"at": row["worst_index"], "engine": row["worst_engine"]}
    worst["reference"] = row["worst_reference"]
    return {**worst, "why": row["reason"]} if row["reason"] else worst


def _oracle(outputs: list[Mapping[str, Any]]) -> Iterator[RenderableType]:
    asked = [row for row in outputs if row["oracle"] is not None]
    told = [f"{row['name']}: {SIDES.get(row['oracle'], row['oracle'])}{_why(row)}" for row in asked]
    yield from lines_part("the oracle", told)
    yield from table_part("distance to float64", asked, ORACLE_COLUMNS)


def _why(row: Mapping[str, Any]) -> str:
    why = (row["oracle_metrics"] or {}).get("why")
    return f" ({why})" if why else ""


def _next_steps(verdict: Mapping[str, Any]) -> list[str]:
    workload = short(verdict["workload"])
    steps = [f"kclab workloads show {workload}"]
    asked = any(row["oracle"] is not None for row in verdict["outputs"])
    if verdict["status"] == "failed" and not asked:
        steps.append(f"kclab replay --workload {workload} --oracle   (who is wrong?)")
    return steps
