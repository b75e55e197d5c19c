"""Options of `kclab capture serve`: the requests, the engine's process, the model, the scope."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.capture_options import NOTES, SCOPE, Notes, Scope
from kclab.cli.options import size_option
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from kclab.serving import ServeOptions

ENGINE = "The engine"
OUTPUTS = ("1", "2", "4")


class Engine(StrEnum):
    """The serving engines that kclab knows."""

    SGLANG = "sglang"


def _outputs(text: str | int) -> int:
    if str(text) not in OUTPUTS:
        raise BadUsage(f"--num-outputs {text}: choose {', '.join(OUTPUTS)}.")
    return int(text)


EngineChecked = Annotated[
    Engine | None,
    typer.Option("--engine", help="Also whether this engine has what capture wraps in it."),
]


@dataclass(frozen=True, slots=True)
class Requests:
    """Which engine and model, what it is asked, and what becomes of the answers."""

    model_path: Annotated[
        Path, typer.Option("--model-path", metavar="DIR", help="The model's folder.")
    ]
    engine_options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ENGINE OPTIONS…]", help="More options for the engine."),
    ] = None
    engine: Annotated[Engine, typer.Option("--engine", help="Which engine to start.")] = (
        Engine.SGLANG
    )
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="square, landscape, edit, alpha; clip; completion, chat; or one of --cases."
            " Repeatable.",
        ),
    ] = None
    cases: Annotated[
        Path | None, typer.Option("--cases", metavar="FILE", help="Your own cases, as TOML.")
    ] = None
    num_outputs: Annotated[
        int,
        typer.Option(
            "--num-outputs",
            parser=_outputs,
            metavar="1|2|4",
            help="Images that each request asks for.",
        ),
    ] = 1
    reference_image: Annotated[
        Path | None,
        typer.Option("--reference-image", metavar="FILE", help="What `edit` starts from."),
    ] = None
    inference_steps: Annotated[
        int | None,
        typer.Option(
            "--inference-steps", min=1, help="Sampling steps; else the checkpoint's own schedule."
        ),
    ] = None
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Leave what was captured unjudged for now.")
    ] = False
    device: Annotated[
        str, typer.Option("--device", help="Where to replay: auto, cpu, cuda, cuda:N.")
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Process:
    """How the engine is started or found, and how long it may take."""

    port: Annotated[
        int,
        typer.Option(
            "--port", help="HTTP; the engine takes +1, +20 and +21 too.", rich_help_panel=ENGINE
        ),
    ] = 30_000
    attach: Annotated[
        str | None,
        typer.Option(
            "--attach",
            metavar="URL",
            help="Use a server that runs already, started with KCLAB_ATTACH set.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    attach_folder: Annotated[
        Path | None,
        typer.Option(
            "--attach-folder",
            envvar="KCLAB_ATTACH",
            metavar="DIR",
            help="The KCLAB_ATTACH folder of that server.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    sglang: Annotated[
        str | None,
        typer.Option(
            "--sglang",
            metavar="PROGRAM",
            help="The sglang program; else the one on PATH, or beside this Python.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    omp_threads: Annotated[
        int | None,
        typer.Option(
            "--omp-threads",
            min=1,
            help="OMP_NUM_THREADS of the engine; else the environment's own, or 8.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    start_timeout: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            min=1,
            help="Seconds that it may take to start.",
            rich_help_panel=ENGINE,
        ),
    ] = 1200.0
    request_timeout: Annotated[
        float,
        typer.Option(
            "--request-timeout",
            min=1,
            help="Seconds that a request may take.",
            rich_help_panel=ENGINE,
        ),
    ] = 1800.0
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, help="Seconds between SIGTERM and SIGKILL.", rich_help_panel=ENGINE
        ),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class Model:
    """What receipts and requests say of the model."""

    model: Annotated[
        str | None,
        typer.Option("--model", help="The model's name; else its folder's.", rich_help_panel=NOTES),
    ] = None
    model_id: Annotated[
        str | None,
        typer.Option(
            "--model-id",
            help="What requests call the model; else by its kind.",
            rich_help_panel=NOTES,
        ),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision", help="The model's revision; else its folder's.", rich_help_panel=NOTES
        ),
    ] = None
    source: Annotated[
        str | None,
        typer.Option("--source", help="Where the model came from.", rich_help_panel=NOTES),
    ] = None


@dataclass(frozen=True, slots=True)
class ServedScope(Scope):
    """What to capture, where the model and the cases say what is not said here."""

    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            help="What to look for; else what fits the model. Repeatable.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            metavar="CLASS",
            help="Module class whose calls are the steps; else the model's.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="N,N…|all",
            help="Steps to capture; else 0,4,7 of an image (0,7 of several), all of a text.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    max_per_axes: Annotated[
        int | None,
        typer.Option(
            "--max-per-axes",
            metavar="K",
            min=0,
            help="Captures per definition and sizes; 0: no limit. Else 4 where all steps are"
            " captured.",
            rich_help_panel=SCOPE,
        ),
    ] = None
    max_bytes: Annotated[
        int,
        size_option(
            "--max-bytes",
            help="New bytes over all processes: 4GiB, 500MB.",
            rich_help_panel=SCOPE,
        ),
    ] = 64 << 30


def serve_options(
    asked: Requests, process: Process, model: Model, scope: ServedScope, notes: Notes
) -> ServeOptions:
    """All of them, as the serving service takes it."""
    from kclab.serving import ServeOptions

    return ServeOptions(
        model_path=asked.model_path,
        engine=asked.engine.value,
        cases=tuple(asked.case or ()),
        case_file=asked.cases,
        outputs=asked.num_outputs,
        reference_image=asked.reference_image,
        inference_steps=asked.inference_steps,
        replay=not asked.no_replay,
        device=asked.device,
        engine_arguments=tuple(asked.engine_options or ()),
        port=process.port,
        attach=process.attach,
        attach_folder=process.attach_folder,
        executable=process.sglang,
        omp_threads=process.omp_threads,
        start_seconds=process.start_timeout,
        request_seconds=process.request_timeout,
        grace_seconds=process.grace,
        model=model.model,
        model_id=model.model_id,
        revision=model.revision,
        source=model.source,
        max_per_axes=scope.max_per_axes,
        capture=scope.options(notes),
    )
