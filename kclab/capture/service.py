"""`capture run`: start a program with capture inside, wait for it, and judge what was captured."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from kclab.capture.control import ControlFolder, is_alive
from kclab.capture.coverage import (
    NOT_WRITTEN,
    STORING,
    WATCHING,
    DefinitionCoverage,
    own_time_us,
    run_coverage,
    uncaptured,
)
from kclab.capture.options import CaptureOptions, check_options
from kclab.capture.plan import CapturePlan
from kclab.capture.program import Program, bootstrap_environment, exit_words, require_program
from kclab.capture.settle import WorkerEnd, adopt_abandoned, settle, wait_for_workers
from kclab.core.errors import EnvironmentLacking
from kclab.core.units import counted
from kclab.db.connection import writing
from kclab.db.rows import add_error
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store

Progress = Callable[[str], None]
"""Takes one line for the person who waits."""


@dataclass(frozen=True, slots=True)
class CaptureSummary:
    """What a capture run brought."""

    run_uuid: str
    status: str
    """`passed`, `failed`, or `empty` when nothing at all was captured."""
    exit_code: int
    """The program's own; negative for a signal."""
    coverage: Sequence[DefinitionCoverage]
    problems: Sequence[str]
    """Why the run failed, one sentence each."""
    workers: int
    captures: int
    stall_us: int
    """What copying took of the engine's threads, all together."""
    watching_us: int
    """What else kclab took of them: looking at each operator of the selected steps."""
    storing_us: int
    """CPU time of the writers' threads, beside the engine's."""

    @property
    def headline(self) -> str:
        """The run in one line."""
        definitions = sum(1 for c in self.coverage if c.captured)
        counts = ((definitions, "definition"), (self.workers, "process"))
        return ", ".join([f"{self.captures} captured", *(counted(n, w) for n, w in counts)])


def capture_run(
    store: Store,
    options: CaptureOptions,
    argv: Sequence[str],
    progress: Progress = lambda line: None,
) -> CaptureSummary:
    """Run `argv` with capture installed in every Python process that it starts.

    Raises BadUsage or EnvironmentLacking before anything starts; what goes wrong later is in the
    summary. Ctrl-C ends the program, keeps what is captured, and goes on as KeyboardInterrupt.
    """
    check_options(options)
    require_program(argv)
    params = {**asdict(options), "command": list(argv)}
    with run(store, "capture", params, mode="run") as active:
        adopt_abandoned(active.connection, store.database)
        label_run(active, options)
        control = ControlFolder.of(store.database, active.uuid)
        control.create()
        try:
            require_space(control)
            plan = make_plan(store, options, argv, active, control)
            progress(f"capturing into {store.database}, run {active.uuid}")
            code = _run_program(active, control, argv, bootstrap_environment(plan.save()))
            summary = conclude(active, control, plan, code)
        finally:
            # What still runs may yet spool; the next run adopts the folder then.
            if not any(is_alive(process) for process in control.workers()):
                control.remove()
        active.finish_as(summary.status, summary_line(summary))
    return summary


def make_plan(
    store: Store,
    options: CaptureOptions,
    argv: Sequence[str],
    active: ActiveRun,
    control: ControlFolder,
) -> CapturePlan:
    """The plan that the run's processes read."""
    return CapturePlan(
        database=store.database.resolve(),
        run_id=active.id,
        run_uuid=active.uuid,
        control=control.path,
        adapters=options.adapters,
        root=options.root,
        definitions=options.definitions,
        steps=options.steps,
        max_per_axes=options.max_per_axes,
        max_bytes=options.max_bytes,
        define_missing=options.define_missing,
        per=options.per,
        on_full=options.on_full,
        strict=options.strict,
        definition_folders=tuple(folder.resolve() for folder in options.definition_folders),
        provenance={"engine": "pytorch", "server_command": list(argv), **options.provenance},
    )


def label_run(active: ActiveRun, options: CaptureOptions) -> None:
    """Give a run its tags and its note."""
    with writing(active.connection) as connection:
        connection.executemany(
            "INSERT INTO run_tag(run_id, tag) VALUES (?,?) ON CONFLICT DO NOTHING",
            [(active.id, tag) for tag in options.tags],
        )
        connection.execute("UPDATE run SET note = ? WHERE id = ?", (options.note, active.id))


def require_space(control: ControlFolder) -> None:
    """Raise EnvironmentLacking where the disk is too full to begin."""
    if control.free_bytes() == 0:
        raise EnvironmentLacking(
            f"{control.path.parent.parent}: the disk is full; free some space, or choose another "
            "store with --db."
        )


def _run_program(
    active: ActiveRun, control: ControlFolder, argv: Sequence[str], environment: dict[str, str]
) -> int:
    program = Program(argv, environment)
    try:
        return program.wait(lambda: not _fatal(control))
    except BaseException as error:
        program.end(signal.SIGINT if type(error) is KeyboardInterrupt else signal.SIGTERM)
        wait_for_workers(control, seconds=5, tick=lambda: None)
        settle(active.connection, active.id, control)
        active.summary = f"interrupted, {_captures(active)[0]} captured"
        raise


def _fatal(control: ControlFolder) -> list[str]:
    return [str(f["message"]) for f in control.failures().values() if f.get("fatal")]


def conclude(
    active: ActiveRun, control: ControlFolder, plan: CapturePlan, code: int
) -> CaptureSummary:
    """Read in what the processes left, and judge the run; `code` is the program's exit code."""
    if not _fatal(control):
        wait_for_workers(control, tick=lambda: None)
    ends = settle(active.connection, active.id, control)
    coverage = run_coverage(active.connection, active.id)
    captures, stall = _captures(active)
    problems = _problems(active, control, code, ends)
    lost = any(end.lost for end in ends)
    problems += _coverage_problems(coverage, plan, installed=bool(ends), lost=lost)
    tried = captures or lost or code or control.failures() or any(c.selected for c in coverage)
    failed = bool(problems) and tried
    return CaptureSummary(
        run_uuid=active.uuid,
        status="failed" if failed else "passed" if captures else "empty",
        exit_code=code,
        coverage=coverage,
        problems=problems,
        workers=len(ends),
        captures=captures,
        stall_us=stall,
        watching_us=own_time_us(active.connection, active.id, WATCHING),
        storing_us=own_time_us(active.connection, active.id, STORING),
    )


def _problems(
    active: ActiveRun, control: ControlFolder, code: int, ends: Sequence[WorkerEnd]
) -> list[str]:
    problems = []
    with writing(active.connection) as connection:
        for process, failure in control.failures().items():
            message = f"process {process}: {failure['message']}"
            problems.append(message)
            add_error(
                connection,
                active.id,
                "capture",
                "install" if failure.get("fatal") else "write",
                message,
                traceback=failure.get("traceback"),
            )
    if code and not _fatal(control):
        problems.append(f"the program ended with {exit_words(code)}.")
    told = {process.rpartition(":")[0] for process in control.failures()}
    return problems + [
        problem
        for end in ends
        if end.process.rpartition(":")[0] not in told and (problem := end.problem())
    ]


def _coverage_problems(
    coverage: Sequence[DefinitionCoverage], plan: CapturePlan, *, installed: bool, lost: bool
) -> list[str]:
    if not installed:
        return [
            "no process of the program imported torch with capture installed"
            " (python -I, -E and -S switch it off)."
        ]
    unwritten = [
        f"{c.name}: {counted(count, 'capture')} {reason}."
        for c in coverage
        for reason, count in c.skipped.items()
        if reason.startswith(NOT_WRITTEN)
    ]
    silent = uncaptured(coverage, plan.definitions)
    if not any(c.captured for c in coverage):
        if plan.definitions:
            silent = [f"0 of {len(plan.definitions)} requested definitions captured.", *silent]
        if not lost and not any(c.seen or c.skipped for c in coverage):
            silent.append("no call that an adapter knows was seen.")
    return unwritten + silent


def _captures(active: ActiveRun) -> tuple[int, int]:
    row = active.connection.execute(
        "SELECT count(*), coalesce(sum(stall_us), 0) FROM capture WHERE run_id = ?", (active.id,)
    ).fetchone()
    return int(row[0]), int(row[1])


def summary_line(summary: CaptureSummary) -> str:
    """The run in one line, its first problem included."""
    return "; ".join([summary.headline, *summary.problems[:1]]).rstrip(".")
