"""`kclab captures`: single occurrences, and where two runs differ."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kclab.cli.groups import grouped
from kclab.cli.listing import Listed
from kclab.cli.options import LimitOption
from kclab.cli.output import (
    Column,
    Format,
    FormatOption,
    heading,
    note,
    note_rest,
    print_fields,
    print_json,
    print_rows,
)
from kclab.cli.show import (
    dated,
    short,
    short_run,
    show_axes,
    show_local,
    show_module,
    show_place,
    show_shape,
    show_time,
)
from kclab.cli.store import current_store
from kclab.core.errors import ExitCode, NothingMatched
from kclab.core.units import counted, format_bytes
from kclab.db.queries.capture_diff import Match, SiteMatch, differing_inputs, match_sites
from kclab.db.queries.captures import capture_details, count_captures, list_captures
from kclab.db.queries.run_diff import flattened
from kclab.db.queries.runs import find_by_prefix, find_run

app = typer.Typer(no_args_is_help=True, help="List receipts; find where two runs first differ.")

COLUMNS = (
    Column("uuid", "capture", show=short),
    Column("workload", show=short),
    Column("definition", first=True),
    Column("run", show=short_run, hidden=True),
    Column("place", "where", middle=True),
    Column("step", right=True, sparse=True),
    Column("rank", right=True, sparse=True),
    Column("module_path", hidden=True),
    Column("operation", hidden=True),
    Column("variant", hidden=True),
    Column("request_id", hidden=True),
    Column("device", hidden=True),
    Column("axes", show=show_axes, hidden=True),
    Column("verdict"),
    Column("stall_us", hidden=True),
    Column("captured", hidden=True),
    Column("captured_us", "captured", show=show_time),
    Column("arrived", hidden=True),
    Column("arrived_us", hidden=True),
)
OUTPUT_COLUMNS = (
    Column("name"),
    Column("dtype"),
    Column("shape", show=show_shape),
    Column("nbytes", "size", show=format_bytes, right=True),
    Column("sha256", "digest", show=short),
    Column("state", "bytes"),
)
DIFF_COLUMNS = (
    Column("match", "differs"),
    Column("definition", first=True),
    Column("place", "where", middle=True),
    Column("step", right=True, sparse=True),
    Column("rank", right=True, sparse=True),
    Column("differing", "in", show=", ".join, wide=True, sparse=True),
    Column("a", show=short),
    Column("b", show=short),
    Column("module_path", hidden=True),
    Column("operation", hidden=True),
    Column("variant", hidden=True),
    Column("workload_a", hidden=True),
    Column("workload_b", hidden=True),
)


@app.command("list")
@grouped
def list_command(context: typer.Context, asked: Listed, form: FormatOption = Format.TABLE) -> None:
    """List captures, newest first."""
    with closing(current_store(context).read()) as connection:
        wanted = asked.filter(connection)
        rows = list_captures(connection, wanted)
        total = count_captures(connection, wanted) if len(rows) == asked.limit else len(rows)
    shown = [{**dated(row, "captured", "arrived"), "place": show_module(row)} for row in rows]
    print_rows(shown, COLUMNS, form, empty="no capture matches.")
    note_rest(len(rows), total, "captures")


@app.command()
def show(
    context: typer.Context,
    capture: Annotated[
        str, typer.Argument(metavar="CAPTURE", help="A capture's uuid or its beginning.")
    ],
    form: FormatOption = Format.TABLE,
) -> None:
    """Show one capture: where and when, its outputs, its receipt."""
    from kclab.blob.state import blob_state

    store = current_store(context)
    with closing(store.read()) as connection:
        details = capture_details(connection, find_by_prefix(connection, "capture", capture))
    for tensor in details["outputs"]:
        tensor["state"] = blob_state(
            store.blobs, tensor["sha256"], tensor["nbytes"], present=bool(tensor.pop("present"))
        ).value
    if form is Format.JSON:
        print_json(dated(details, "captured", "arrived"))
    elif form is Format.CSV:
        print_fields(dated(details, "captured", "arrived"), form)
    else:
        _print_page(details)


def _print_page(details: Mapping[str, Any]) -> None:
    fields = {
        "capture": details["uuid"],
        "workload": details["workload"],
        "definition": details["definition"],
        "run": details["run"],
        "where": show_place(details),
        "axes": show_axes(details["axes"]),
        "variant": details["variant"],
        "request": details["request_id"],
        "device": details["device"],
        "process": details["process_id"],
        "captured": show_local(details["captured_us"]),
        "arrived": show_local(details["arrived_us"]),
        "stall": None if details["stall_us"] is None else f"{details['stall_us']:,} us",
        "verdict": details["verdict"],
    }
    print_fields({name: value for name, value in fields.items() if value is not None}, Format.TABLE)
    if details["outputs"]:
        heading("outputs")
        print_rows(details["outputs"], OUTPUT_COLUMNS, Format.TABLE)
    for title, part in (("request", details["request"]), ("receipt", details["receipt"])):
        if said := _not_said(part or {}):
            heading(title)
            print_fields(said, Format.TABLE)


SAID = (
    *("uuid", "definition", "run", "axes", "inputs", "outputs", "variant", "device", "request"),
    *("request_id", "module_path", "operation", "step", "rank", "process_id", "started_at"),
    *("captured_at", "stall_us", "expected_output"),
)
"""What a receipt repeats of the rows that the page has shown; JSON has it all."""


def _not_said(part: Mapping[str, Any]) -> dict[str, Any]:
    """Name and value for a page: times local, command lines as they were typed."""
    told = {name: value for name, value in part.items() if name not in SAID}
    for name in ("started", "finished"):
        if f"{name}_us" in told:
            instant = told.pop(f"{name}_us")
            told[name] = instant and show_local(instant)
    if isinstance(command := told.get("server_command"), list):
        told["server_command"] = shlex.join(command)
    return flattened(told)


@app.command()
def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="A capture run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another capture run.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Show the identical sites, too.")
    ] = False,
    limit: LimitOption = 50,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say, site by site, where two runs' inputs and outputs differ; the first one first.

    Where the inputs of a site are the same and its outputs differ, the difference arose there.
    Exit code 1 when something differs, 3 when the runs have no site in common.
    """
    with closing(current_store(context).read()) as connection:
        first, second = find_run(connection, a), find_run(connection, b)
        matches = match_sites(connection, int(first["id"]), int(second["id"]))
        wanted = [m for m in matches if everything or m.match is not Match.IDENTICAL]
        shown = wanted if form is not Format.TABLE else wanted[:limit]
        rows = [_diff_row(m, differing_inputs(connection, m)) for m in shown]
    print_rows(rows, DIFF_COLUMNS, form, empty="no site differs.")
    note_rest(len(shown), len(wanted), "sites")
    _conclude(matches, short_run(first["uuid"]), short_run(second["uuid"]))


def _diff_row(match: SiteMatch, inputs: list[str]) -> dict[str, Any]:
    place = match.place
    fields = {
        "match": match.match.value,
        "definition": place.definition,
        "differing": inputs or match.differing_outputs or None,
        "module_path": place.module_path,
        "operation": place.operation,
        "step": place.step,
        "variant": place.variant,
        "rank": place.rank,
        "a": match.a and match.a.capture,
        "b": match.b and match.b.capture,
        "workload_a": match.a and match.a.workload,
        "workload_b": match.b and match.b.workload,
    }
    return {**fields, "place": show_module(fields)}


def _conclude(matches: list[SiteMatch], a: str, b: str) -> None:
    counts = Counter(match.match for match in matches)
    told = ", ".join(f"{kind} {counts[kind]:,}" for kind in Match if counts[kind])
    if not counts.keys() - {Match.ONLY_A, Match.ONLY_B}:
        found = f" ({told})" if told else ": `kclab runs list` shows which captured or imported"
        raise NothingMatched(f"runs {a} and {b} have no site in common{found}.")
    note(f"{counted(len(matches), 'site')}: {told}")
    differing = (Match.OUTPUTS_DIFFER, Match.INPUTS_DIFFER)
    first = next((match for match in matches if match.match in differing), None)
    if first is not None:
        place = show_place(asdict(first.place))
        note(f"first difference: {first.match} at {place} ({first.place.definition}).")
    if len(matches) > counts[Match.IDENTICAL]:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
