"""`kclab workloads`: captured inputs, by content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Annotated, Any

import typer

from kclab.cli.groups import grouped
from kclab.cli.listing import Listed
from kclab.cli.output import (
    Column,
    Format,
    FormatOption,
    heading,
    note,
    note_rest,
    print_fields,
    print_json,
    print_lines,
    print_rows,
)
from kclab.cli.show import (
    dated,
    short,
    short_run,
    show_axes,
    show_error,
    show_local,
    show_module,
    show_shape,
    show_time,
)
from kclab.cli.store import current_store
from kclab.core.units import counted, format_bytes, format_count
from kclab.db.queries.runs import find_by_prefix
from kclab.db.queries.workloads import count_workloads, list_workloads, workload_details

app = typer.Typer(no_args_is_help=True, help="List and show captured inputs.")

COLUMNS = (
    Column("uuid", "workload", show=short),
    Column("definition", first=True),
    Column("axes", show=show_axes, wide=True),
    Column("nbytes", "size", show=format_bytes, right=True),
    Column("captures", "seen", show=format_count, right=True),
    Column("outputs", right=True, sparse=True),
    Column("verdict"),
    Column("captured", hidden=True),
    Column("captured_us", "captured", show=show_time),
    Column("added", "added_at", hidden=True),
    Column("added_us", "added", show=show_time, hidden=True),
)
TENSOR_COLUMNS = (
    Column("name"),
    Column("dtype"),
    Column("shape", show=show_shape),
    Column("nbytes", "size", show=format_bytes, right=True),
    Column("sha256", "digest", show=short),
    Column("state", "bytes"),
)
CAPTURE_COLUMNS = (
    Column("uuid", "capture", show=short),
    Column("run", show=short_run),
    Column("place", "where", middle=True),
    Column("step", right=True, sparse=True),
    Column("rank", right=True, sparse=True),
    Column("outputs", right=True, sparse=True),
    Column("captured_us", "captured", show=show_time),
)
VERDICT_COLUMNS = (
    Column("status"),
    Column("run", show=short_run),
    Column("capture", show=short, sparse=True),
    Column("device", sparse=True),
    Column("mismatched", "off", show=format_count, right=True, sparse=True),
    Column("max_abs", "max error", show=show_error, right=True, sparse=True),
    Column("started_us", "when", show=show_time),
)


@app.command("list")
@grouped
def list_command(
    context: typer.Context,
    asked: Listed,
    differing: Annotated[
        bool, typer.Option("--differing", help="Only those that gave different outputs.")
    ] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """List workloads, the last added first."""
    with closing(current_store(context).read()) as connection:
        wanted = asked.filter(connection)
        rows = list_workloads(connection, wanted, differing=differing)
        total = count_workloads(connection, wanted) if len(rows) == asked.limit else len(rows)
    shown = [dated(row, "captured", "added") for row in rows]
    if form is Format.TABLE:
        shown = [{**row, "outputs": _several(row["outputs"])} for row in shown]
    print_rows(shown, COLUMNS, form, empty="no workload matches.")
    if findings := sum(row["outputs"] > 1 for row in rows):
        note(f"{counted(findings, 'workload')} gave different outputs for the same inputs.")
    if not differing:
        note_rest(len(rows), total, "workloads")


@app.command()
def show(
    context: typer.Context,
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A workload's uuid or its beginning.")
    ],
    form: FormatOption = Format.TABLE,
) -> None:
    """Show one workload: inputs, occurrences, the outputs that it gave, verdicts."""
    from kclab.blob.state import blob_state

    store = current_store(context)
    with closing(store.read()) as connection:
        details = workload_details(connection, find_by_prefix(connection, "workload", workload))
    for tensor in _tensors(details):
        tensor["state"] = blob_state(
            store.blobs, tensor["sha256"], tensor["nbytes"], present=bool(tensor.pop("present"))
        ).value
    if form is Format.TABLE:
        _print_page(details)
    elif form is Format.JSON:
        print_json(_dated_deep(details))
    else:
        print_fields(_dated_deep(details), form)


def _several(count: int) -> int | None:
    return count if count > 1 else None


def _tensors(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    inputs = [tensor for tensor in details["inputs"] if tensor["sha256"]]
    return inputs + [tensor for group in details["outputs"] for tensor in group["tensors"]]


def _dated_deep(details: Mapping[str, Any]) -> dict[str, Any]:
    return dated(details, "added") | {
        "captures": [dated(row, "captured") for row in details["captures"]],
        "verdicts": [dated(row, "started") for row in details["verdicts"]],
    }


def _print_page(details: Mapping[str, Any]) -> None:
    print_fields(_head(details), Format.TABLE)
    heading("inputs")
    print_rows([_input(row) for row in details["inputs"]], TENSOR_COLUMNS, Format.TABLE)
    sets = details["outputs"]
    for number, group in enumerate(sets, start=1):
        seen = counted(len(group["captures"]), "capture")
        heading(f"outputs {number} of {len(sets)}, {seen}" if len(sets) > 1 else "outputs")
        print_rows(group["tensors"], TENSOR_COLUMNS, Format.TABLE)
    if details["captures"]:
        heading("captures")
        print_rows(_captures(details), CAPTURE_COLUMNS, Format.TABLE)
    if details["verdicts"]:
        heading("verdicts")
        print_rows(details["verdicts"], VERDICT_COLUMNS, Format.TABLE)
    print_lines("findings", list(_findings(details)))


def _head(details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "workload": details["uuid"],
        "definition": details["definition"],
        "axes": show_axes(details["axes"]),
        "added": show_local(details["added_us"]),
    }


def _input(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["sha256"]:
        return dict(row)
    kind, value = ("scalar", row["scalar"]) if row["random"] is None else ("random", "not captured")
    return {**row, "dtype": kind, "state": str(value)}


def _captures(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    number = {
        uuid: place
        for place, group in enumerate(details["outputs"], start=1)
        for uuid in group["captures"]
    }
    return [
        {
            **row,
            "place": show_module(row),
            "outputs": number.get(row["uuid"]) if len(details["outputs"]) > 1 else None,
        }
        for row in details["captures"]
    ]


def _findings(details: Mapping[str, Any]) -> Iterable[str]:
    if len(details["outputs"]) > 1:
        yield (
            f"the same inputs gave {len(details['outputs'])} different outputs: look at where "
            "(another kernel, a race, an engine's change) with `kclab captures diff RUN RUN`"
        )
    reason = next((row["reason"] for row in details["verdicts"] if row["reason"]), None)
    if reason:
        yield reason
    for tensor in _tensors(details):
        if tensor["state"] in ("missing", "damaged"):
            yield (
                f"{tensor['name']}: its blob {short(tensor['sha256'])} is {tensor['state']}; "
                "`kclab import PATH --repair` brings it back"
            )
        if tensor["state"] == "absent" and tensor["hint"]:
            yield f"{tensor['name']}: bytes are elsewhere: {tensor['hint']}"
