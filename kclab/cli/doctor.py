"""`kclab doctor`: what this machine and store have, and what works on them."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import typer

from kclab.cli.output import Column, Format, FormatOption, note, print_rows
from kclab.cli.serve_options import Engine, EngineChecked
from kclab.cli.store import current_store
from kclab.core.errors import EnvironmentLacking, ExitCode, KclabError
from kclab.core.machine import Finding, State, machine_findings, package_findings, problem
from kclab.core.units import counted

app = typer.Typer()

COLUMNS = (
    Column("area"),
    Column("name", "what"),
    Column("state"),
    Column("found", wrap=True),
    Column("advice", hidden=True),
)


@app.command()
def doctor(
    context: typer.Context, engine: EngineChecked = None, form: FormatOption = Format.TABLE
) -> None:
    """Say what this machine has and what works on it.

    Exit code 0 unless something that is installed or stored does not work, or the engine that was
    asked about is not here: then 4, or 5 where it is the database.
    """
    from kclab.db.health import store_findings

    findings = [
        *machine_findings(),
        *_cublaslt(),
        *package_findings(),
        *store_findings(current_store(context)),
        _trust(),
        *_engine(engine),
    ]
    rows = [asdict(finding) for finding in findings]
    if form is Format.TABLE:
        rows = [
            {**row, "found": "; ".join(filter(None, (row["found"], row["advice"])))} for row in rows
        ]
    print_rows(rows, COLUMNS, form)
    _conclude(findings, engine)


def _engine(engine: Engine | None) -> Iterable[Finding]:
    """Whether the installed release has what capture wraps in it."""
    from kclab.serving.targets import engine_findings

    return [] if engine is None else engine_findings()


def _conclude(findings: list[Finding], engine: Engine | None) -> None:
    counts = Counter(finding.state for finding in findings)
    note(", ".join(f"{counts[state]} {state}" for state in State if counts[state]))
    lacking = [f for f in findings if f.state is State.ABSENT and f.area == engine]
    broken = lacking + [finding for finding in findings if finding.state is State.BROKEN]
    if broken:
        in_store = all(finding.area == "store" for finding in broken)
        raise typer.Exit(int(ExitCode.DATABASE if in_store else ExitCode.ENVIRONMENT))


def _cublaslt() -> Iterable[Finding]:
    """The library that FC2 searches, which torch's CUDA build brings, and what building needs."""
    from kclab.fc2 import build

    try:
        path = build.find_toolkit().cublaslt
    except EnvironmentLacking as error:
        loaded = build.loaded_library("libcublasLt.so")
        if loaded is not None:
            yield _cublaslt_version(loaded)
            yield problem("machine", "CUDA headers", error, State.ABSENT)
        else:
            yield problem("machine", "cublasLt", error, State.ABSENT)
    else:
        yield _cublaslt_version(path)


def _cublaslt_version(path: Path) -> Finding:
    try:
        version = int(ctypes.CDLL(str(path)).cublasLtGetVersion())
    except (OSError, AttributeError) as error:
        return Finding("machine", "cublasLt", State.BROKEN, f"{path}: {error}", "reinstall torch")
    # cublasLt.h: CUBLAS_VER_MAJOR * 10000 + MINOR * 100 + PATCH.
    told = f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
    return Finding("machine", "cublasLt", State.OK, f"{told}, {path}")


def _trust() -> Finding:
    from kclab.core.trust import trust_file, trusted

    try:
        count = len(trusted())
    except KclabError as error:
        return problem("trust", "references", error, State.BROKEN)
    place = str(trust_file()).replace(f"{Path.home()}/", "~/")
    found = f"{counted(count, 'reference')} besides kclab's own, in {place}"
    return Finding("trust", "references", State.OK, found)
