"""`kclab capture serve`: start a serving engine, ask it, and capture what its workers compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from kclab.cli import capture_options as scope
from kclab.cli import serve_options as served
from kclab.cli.output import note
from kclab.cli.store import current_store
from kclab.core.errors import ExitCode

if TYPE_CHECKING:
    from kclab.serving import ServeSummary

EPILOG = (
    "Examples: kclab capture serve --model-path models/Qwen-Image-2.1 --case square --case edit · "
    "kclab capture serve --model-path models/Qwen3-Next --case completion -- --tp 2 · "
    "KCLAB_ATTACH=/tmp/attach kclab capture serve --attach http://127.0.0.1:30000 "
    "--model-path models/Qwen-Image-2.1"
)


def serve(
    context: typer.Context,
    model_path: served.ModelPath,
    engine_options: served.EngineArguments = None,
    engine: served.EngineOption = served.Engine.SGLANG,
    case: served.CaseNames = None,
    cases: served.CaseFile = None,
    num_outputs: served.NumOutputs = 1,
    reference_image: served.ReferenceImage = None,
    inference_steps: served.InferenceSteps = None,
    no_replay: served.NoReplay = False,
    device: served.ReplayDevice = "auto",
    port: served.HttpPort = 30_000,
    attach: served.Attach = None,
    attach_folder: served.AttachFolder = None,
    sglang: served.SglangProgram = None,
    omp_threads: served.OmpThreads = None,
    start_timeout: served.StartTimeout = 1200.0,
    request_timeout: served.RequestTimeout = 1800.0,
    grace: served.Grace = 30.0,
    adapter: served.Adapters = None,
    root: served.Root = None,
    definition: scope.DefinitionGlobs = None,
    definitions: scope.DefinitionFolders = None,
    steps: served.Steps = None,
    max_per_axes: served.MaxPerAxes = None,
    max_bytes: scope.MaxBytes = 64 << 30,
    define_missing: scope.DefineMissing = False,
    per: scope.PerOption = scope.Per.VARIANT,
    on_full: scope.OnFullOption = scope.OnFull.WAIT,
    strict: scope.Strict = False,
    model: served.ModelName = None,
    model_id: served.ModelId = None,
    revision: served.Revision = None,
    source: served.Source = None,
    fact: scope.Facts = None,
    tag: scope.Tags = None,
    remark: scope.Remark = None,
) -> None:
    """Start an engine, send it complete requests, capture its workers' operator calls, replay them.

    The engine is ended in any case, with everything that it started. Its output goes to the
    store's `runs/RUN/server.log`, images into `files/`. Exit code: 0 all captured and passed, 1 the
    engine failed, something selected was not captured or a replay did not pass, 3 nothing was
    captured, 4 a port is taken or the engine is not here.
    """
    from kclab.capture.service import CaptureOptions, parse_facts, parse_steps
    from kclab.serving import ServeOptions, capture_serve

    capture = CaptureOptions(
        adapters=tuple(adapter or ()),
        root=root,
        definitions=tuple(definition or ()),
        definition_folders=tuple(definitions or ()),
        steps=parse_steps(steps),
        max_bytes=max_bytes,
        define_missing=define_missing,
        per=per.value,
        on_full=on_full.value,
        strict=strict,
        tags=tuple(tag or ()),
        note=remark,
        provenance=parse_facts(fact or ()),
    )
    options = ServeOptions(
        model_path=model_path,
        engine=engine.value,
        cases=tuple(case or ()),
        case_file=cases,
        outputs=num_outputs,
        reference_image=reference_image,
        model=model,
        model_id=model_id,
        revision=revision,
        source=source,
        inference_steps=inference_steps,
        port=port,
        attach=attach,
        attach_folder=attach_folder,
        executable=sglang,
        engine_arguments=tuple(engine_options or ()),
        omp_threads=omp_threads,
        start_seconds=start_timeout,
        request_seconds=request_timeout,
        grace_seconds=grace,
        replay=not no_replay,
        device=device,
        max_per_axes=max_per_axes,
        capture=capture,
    )
    with _progress() as progress:
        summary = capture_serve(current_store(context), options, progress)
    _report(summary)
    raise typer.Exit(int(_exit_code(summary)))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is going on: a spinner on a terminal, lines elsewhere; replays only as a spinner."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None if line.startswith("replayed ") else note(line)
        return
    with console.status("starting") as status:
        yield lambda line: status.update(line)


def _report(summary: ServeSummary) -> None:
    from kclab.cli.capture import report
    from kclab.cli.replay_page import print_page

    for request in summary.requests:
        note(f"{request.request_id}: {request.outputs} answered in {request.seconds:.1f} s")
    if summary.log is not None:
        note(f"the engine's own output: {summary.log}")
    report(summary.capture)
    if summary.replayed is not None:
        print_page(summary.replayed, None, oracle=False)
    elif summary.capture.captures:
        note(f"next: kclab replay --run {summary.capture.run_uuid[:13]}")


def _exit_code(summary: ServeSummary) -> ExitCode:
    from kclab.cli.capture import exit_code

    code = exit_code(summary.capture)
    if code is not ExitCode.OK or summary.replayed is None:
        return code
    return summary.replayed.exit_code
