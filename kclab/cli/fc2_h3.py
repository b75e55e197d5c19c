"""The FC2 commands that run a model: capture, block-gate, trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.fc2_h3_options import (
    Gated,
    InputOption,
    Model,
    Request,
    SamplerStepOption,
    is_h3,
    make_h3_options,
)
from kclab.cli.fc2_options import (
    DEFAULT_SEED,
    BackendOption,
    Dtype,
    DtypeOption,
    FastOption,
    OutputOption,
    ShapeOption,
    WarmupOption,
    make_problem,
    parse_seconds,
)
from kclab.cli.fc2_show import show_gain
from kclab.cli.groups import grouped
from kclab.cli.output import Column, Format, FormatOption, note, print_fields, print_rows
from kclab.cli.progress import shown_progress
from kclab.cli.show import show_ms
from kclab.cli.store import current_store
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from kclab.db.store import Store
    from kclab.fc2.gate_block import BlockResult, GateOptions
    from kclab.fc2.h3_options import H3Options
    from kclab.fc2.parity import Parity

BOUNDARY_COLUMNS = (
    Column("workload"),
    Column("block"),
    Column("shape"),
    Column("m_padded", "padded M", right=True),
    Column("dtype"),
    Column("source"),
)

BLOCK_COLUMNS = (
    Column("block"),
    Column("config"),
    Column("parity"),
    Column("ratio", "gain", show=show_gain, right=True),
    Column("verdict"),
    Column("baseline_ms", "baseline ms", show=show_ms, right=True),
    Column("candidate_ms", "candidate ms", show=show_ms, right=True),
)

SecondsOption = Annotated[
    str | None,
    typer.Option("--max-seconds", help="Begin no step later: half of it for each way."),
]
GateRoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, help="ABBA rounds; a verdict needs 6.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(capture)
    app.command("block-gate")(block_gate)
    app.command()(trajectory)


@grouped
def capture(
    context: typer.Context,
    model: Model,
    request: Request,
    shape: ShapeOption = None,
    input_: InputOption = None,
    dtype: DtypeOption = Dtype.BF16,
    fast_accumulation: FastOption = False,
    backend: BackendOption = None,
    sampler_step: SamplerStepOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Store FC2's inputs as workloads: out of a MiniMax-H3, or synthetic ones of a --shape."""
    from kclab.fc2.backends import default_backend

    if (shape is not None) == is_h3(context.params):
        raise BadUsage("name one source: --shape MxNxK, --canonical, --tiny, --checkpoint FILE.")
    store, name = current_store(context), backend or default_backend()
    if shape is None:
        ids = _capture_model(store, context.params, name)
        print_rows(_boundaries(store, ids), BOUNDARY_COLUMNS, form)
        return
    (row,) = _boundaries(store, _capture_shape(store, context.params, name))
    if form is Format.TABLE:
        note(f"{row['shape']} {row['dtype']}, stored with {row['m_padded']} rows")
        typer.echo(row["workload"])
    else:
        print_rows([row], BOUNDARY_COLUMNS, form)


def _capture_shape(store: Store, values: dict[str, Any], backend: str) -> list[int]:
    from kclab.fc2.lab import capture as make

    problem = make_problem(values["shape"], values["dtype"], values["fast_accumulation"])
    seed = DEFAULT_SEED if values["seed"] is None else values["seed"]
    return [make(store, problem, backend, seed)[1]]


def _capture_model(store: Store, values: dict[str, Any], backend: str) -> list[int]:
    from kclab.fc2.h3_boundary import capture_h3

    options = make_h3_options(values)
    _warn_of_size(options, backend)
    with shown_progress(lines=True) as progress:
        taken = capture_h3(store, options, backend, progress=progress, params=_params(values))
    return list(taken.boundary_ids.values())


def _warn_of_size(options: H3Options, backend: str) -> None:
    if backend == "cpu" and options.request.canonical:
        tokens = options.request.layout.tokens
        note(f"{tokens:,} tokens are a GPU's work and may take hours here; --tiny is for a CPU")


def _boundaries(store: Store, ids: list[int]) -> list[dict[str, Any]]:
    marks = ", ".join("?" * len(ids))
    with closing(store.read()) as connection:
        rows = connection.execute(
            "SELECT w.uuid AS workload, b.block, b.m, b.n, b.k, b.m_padded, b.precision,"
            " b.fast_accumulation, b.source FROM fc2_boundary b"
            f" JOIN workload w ON w.id = b.workload_id WHERE b.id IN ({marks}) ORDER BY b.block",
            ids,
        ).fetchall()
    return [
        {
            **{name: row[name] for name in ("workload", "block", "m_padded", "source")},
            "shape": f"{row['m']}x{row['n']}x{row['k']}",
            "dtype": row["precision"] + ("+fast" if row["fast_accumulation"] else ""),
        }
        for row in rows
    ]


@grouped
def block_gate(
    context: typer.Context,
    model: Model,
    gated: Gated,
    request: Request,
    input_: InputOption = None,
    sampler_step: SamplerStepOption = None,
    warmup: WarmupOption = 2,
    rounds: GateRoundsOption = 6,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Swap FC2 inside real blocks: every output byte must stay, and both ways are timed."""
    from kclab.fc2.backends import default_backend
    from kclab.fc2.gate_block import block_gate as gate

    options = make_h3_options(context.params)
    measured = _gate_options(gated, warmup, rounds)
    store, name = current_store(context), gated.backend or default_backend()
    _warn_of_size(options, name)
    with shown_progress(lines=True) as progress:
        report = gate(
            store, options, name, measured, progress=progress, params=_params(context.params)
        )
    rows = [_block_row(result, report.config.text) for result in report.blocks]
    print_rows(rows, BLOCK_COLUMNS, form)
    _write_output(store, report.run_uuid, output)


def _block_row(result: BlockResult, config: str) -> dict[str, Any]:
    from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM

    comparison = result.timing.comparison
    return {
        "block": result.block,
        "config": config,
        "parity": "exact" if result.exact else "differs",
        "ratio": comparison.ratio.estimate,
        "verdict": str(comparison.verdict),
        "baseline_ms": result.timing.summary(BASELINE_ARM)["p50_ms"],
        "candidate_ms": result.timing.summary(CANDIDATE_ARM)["p50_ms"],
        **{name: _parity(parity) for name, parity in result.parities.items()},
    }


@grouped
def trajectory(
    context: typer.Context,
    model: Model,
    gated: Gated,
    request: Request,
    max_seconds: SecondsOption = None,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Denoise with FC2 replaced in all blocks: video and audio must stay byte for byte."""
    from kclab.fc2.backends import default_backend
    from kclab.fc2.gate_trajectory import trajectory_gate

    options = make_h3_options({**context.params, "input_": None, "sampler_step": None})
    limit = float("inf") if max_seconds is None else parse_seconds(max_seconds)
    store, name = current_store(context), gated.backend or default_backend()
    _warn_of_size(options, name)
    with shown_progress(lines=True) as progress:
        report = trajectory_gate(
            store,
            options,
            name,
            _gate_options(gated, 0, 0),
            max_seconds=limit,
            progress=progress,
            params=_params(context.params),
        )
    if report.steps < report.steps_in_all:
        note(f"{report.steps} of {report.steps_in_all} steps fit into {max_seconds}.")
    note("each way ran once: the bytes are judged, the seconds are only told.")
    fields = {
        "config": report.config.text,
        "steps": report.steps,
        "baseline_seconds": round(report.baseline_seconds, 3),
        "candidate_seconds": round(report.candidate_seconds, 3),
        "improvement_percent": round(report.improvement_percent, 2),
        **{f"{name}_parity": _parity(parity) for name, parity in report.parities.items()},
    }
    print_fields(fields, form)
    _write_output(store, report.run_uuid, output)


def _write_output(store: Store, run: str, output: Path | None) -> None:
    from kclab.cli.fc2_files import write_seed_document

    if output is not None:
        write_seed_document(store, run, output)


def _parity(parity: Parity) -> str:
    return "exact" if parity.exact else f"{parity.different} elements differ"


def _gate_options(gated: Gated, warmup: int, rounds: int) -> GateOptions:
    from kclab.fc2.gate_block import GateOptions as Options

    return Options(gated.candidate, gated.workspace, warmup, rounds)


def _params(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
