"""`kclab fc2`: characterize every algorithm for a captured GEMM, and ask what is known of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli import fc2_checks, fc2_files, fc2_h3, fc2_memory
from kclab.cli.fc2_options import (
    BUDGETS,
    DEFAULT_SEED,
    MIB,
    BackendOption,
    BoundariesArgument,
    BudgetsOption,
    Dtype,
    DtypeOption,
    FastOption,
    HotOption,
    Measured,
    OutputOption,
    RequestedOption,
    Searching,
    SeedOption,
    ShapesOption,
    WarmupOption,
    WorkspaceOption,
    make_subject,
)
from kclab.cli.groups import grouped
from kclab.cli.options import RayOption
from kclab.cli.output import Format, FormatOption, note, print_fields, print_rows
from kclab.cli.store import current_store
from kclab.core.errors import CheckFailed, EnvironmentLacking

if TYPE_CHECKING:
    from kclab.db.store import Store
    from kclab.fc2.characterize import Questions
    from kclab.fc2.lab import Subject
    from kclab.fc2.sweeps import Ask

app = typer.Typer(no_args_is_help=True, help="Characterize every algorithm for a captured GEMM.")
fc2_h3.register(app)
fc2_memory.register(app)
fc2_files.register(app)
fc2_checks.register(app)

SplitsOption = Annotated[
    list[int] | None,
    typer.Option("--explicit-split-k", help="Split-K counts to check explicitly; repeatable."),
]
ChecksOption = Annotated[
    int, typer.Option("--max-explicit-checks", min=0, help="Explicit checks at most.")
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=6, help="Mirrored rounds at least; more while undecided.")
]


@app.command("compile")
def compile_(
    context: typer.Context,
    build_directory: Annotated[
        Path | None, typer.Option(help="Where the library goes; by default the user's cache.")
    ] = None,
    verbose_build: Annotated[bool, typer.Option(help="Rebuild with warnings as errors.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Build the C library against the cuBLAS that torch has loaded, and say what was found."""
    import torch  # noqa: F401  (maps its cuBLAS, so that ours is built against that one)

    from kclab.db.runs import run
    from kclab.fc2.backends.cublaslt import CublasLt
    from kclab.fc2.build import build

    with run(current_store(context), "fc2", _params(context), mode="compile") as active:
        built = build(folder=build_directory, strict=verbose_build)
        facts: dict[str, Any] = dict(built.facts())
        try:
            facts |= CublasLt.load().facts()
        except EnvironmentLacking as error:
            facts["device"] = f"none: {error}"
        active.finish_as("passed", f"cuBLAS headers {facts['header version']}")
    print_fields(facts, form)


@app.command()
@grouped
def sweep(
    context: typer.Context,
    searching: Searching,
    boundary: BoundariesArgument = None,
    shape: ShapesOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every stored boundary.")] = False,
    dtype: DtypeOption = Dtype.BF16,
    fast_accumulation: FastOption = False,
    seed: SeedOption = DEFAULT_SEED,
    backend: BackendOption = None,
    workspace: WorkspaceOption = 64 * MIB,
    hot: HotOption = False,
    ray: RayOption = None,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Search for the fastest exact algorithm: an answer first, then wider while time lasts.

    Several boundaries are swept one after the other, or side by side with --ray, a GPU each.
    """
    from kclab.cli.fc2_sweeps import Several, sweep_several
    from kclab.fc2.sweeps import Ask

    ask = Ask(searching.options(), searching.confirm, searching.resume, _params(context))
    several = Several(boundary or (), shape or (), every, dtype, fast_accumulation, ray)
    store, name, made = current_store(context), *several.only
    if several.wide:
        several.check(searching.resume, output)
        backend = backend or ("auto" if ray else None)
        like = make_subject(None, None, dtype, False, seed, backend, workspace, hot)
        sweep_several(store, several.subjects(store, like), ask, ray, form)
        return
    subject = make_subject(name, made, dtype, fast_accumulation, seed, backend, workspace, hot)
    _sweep_one(store, subject, ask, form, output)


def _sweep_one(store: Store, subject: Subject, ask: Ask, form: Format, output: Path | None) -> None:
    from kclab.cli.fc2_show import shown_race
    from kclab.fc2.sweep import sweep as search

    params = ask.params_of(subject)
    with shown_race() as watch:
        report = search(store, subject, ask.options, resume=ask.resume, watch=watch, params=params)
    _print_run(store, report.run_uuid, form, output)
    best = report.outcome.exact
    if ask.confirm and best is not None and not best.is_control:
        _confirm(store, report.run_uuid, best.config.text, ask.confirm)


def _confirm(store: Store, run: str, config: str, processes: int) -> None:
    from kclab.fc2.confirm import confirm_winner

    outcome = confirm_winner(store, run, config, processes)
    note(f"{outcome.agreed} of {outcome.asked} fresh processes agree: {', '.join(outcome.said)}")
    if outcome.agreed < outcome.asked:
        raise CheckFailed("the winner did not hold in every fresh process.")


@app.command()
@grouped
def characterize(
    context: typer.Context,
    measured: Measured,
    workspace_budgets: BudgetsOption = None,
    requested_count: RequestedOption = 32,
    explicit_split_k: SplitsOption = None,
    max_explicit_checks: ChecksOption = 64,
    warmup: WarmupOption = 2,
    rounds: RoundsOption = 20,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Ask the heuristic per budget, check explicit split-K, and measure one candidate."""
    from kclab.fc2.characterize import Questions

    asked = Questions(
        tuple(workspace_budgets or BUDGETS),
        requested_count,
        tuple(explicit_split_k or (1, 2, 4, 8, 16)),
        max_explicit_checks,
    )
    _measure(context, measured, asked, (warmup, rounds), form, output)


@app.command()
@grouped
def selected(
    context: typer.Context,
    measured: Measured,
    warmup: WarmupOption = 2,
    rounds: RoundsOption = 20,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Measure one config against both baselines, GEMM alone and with its producer."""
    from kclab.fc2.characterize import Questions

    _measure(context, measured, Questions(), (warmup, rounds), form, output)


def _measure(
    context: typer.Context,
    measured: Measured,
    asked: Questions,
    times: tuple[int, int],
    form: Format,
    output: Path | None,
) -> None:
    """`times` are untimed launches and rounds."""
    from kclab.fc2.lab import measure

    store, mode = current_store(context), str(context.info_name)
    subject, choose = measured.subject(), asked.chooser(measured.candidate)
    warmup, rounds = times
    report = measure(
        store, subject, choose, mode=mode, warmup=warmup, rounds=rounds, params=_params(context)
    )
    _print_run(store, report.run_uuid, form, output)


@app.command()
@grouped
def profile(
    context: typer.Context,
    measured: Measured,
    profile_target: Annotated[
        str, typer.Option("--profile-target", help="baseline or candidate.")
    ] = "candidate",
    warmup: WarmupOption = 2,
    output: OutputOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Run one call between cudaProfilerStart and Stop, for ncu or nsys; parity is checked."""
    from kclab.cli.fc2_files import write_seed_document
    from kclab.fc2.characterize import Questions
    from kclab.fc2.profiling import profile_one

    choose = Questions().chooser(measured.candidate)
    store, params = current_store(context), _params(context)
    found = profile_one(store, measured.subject(), choose, profile_target, warmup, params)
    print_fields(found, form)
    if output is not None:
        write_seed_document(store, "last", output, profile=found)


def _params(context: typer.Context) -> dict[str, Any]:
    return {key: value for key, value in context.params.items() if value is not None}


def _print_run(store: Store, run: str, form: Format, output: Path | None) -> None:
    from kclab.cli.fc2_files import write_seed_document
    from kclab.cli.fc2_show import RESULT_COLUMNS, SCOPE, note_drift, with_text
    from kclab.db.queries.fc2 import run_results

    with closing(store.read()) as connection:
        rows = [with_text(row) for row in run_results(connection, run)]
    print_rows(rows, [SCOPE, *RESULT_COLUMNS], form)
    note_drift(rows)
    if output is not None:
        write_seed_document(store, run, output)
