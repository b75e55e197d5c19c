"""Options of `kclab capture serve` as parameter types."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kclab.cli.capture_options import NOTES, SCOPE
from kclab.core.errors import BadUsage

ENGINE = "The engine"
OUTPUTS = ("1", "2", "4")


class Engine(StrEnum):
    """The serving engines that kclab knows."""

    SGLANG = "sglang"


def _outputs(text: str | int) -> int:
    if str(text) not in OUTPUTS:
        raise BadUsage(f"--num-outputs {text}: choose {', '.join(OUTPUTS)}.")
    return int(text)


ModelPath = Annotated[Path, typer.Option("--model-path", metavar="DIR", help="The model's folder.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Which engine to start.")]
EngineChecked = Annotated[
    Engine | None,
    typer.Option("--engine", help="Also whether this engine has what capture wraps in it."),
]
CaseNames = Annotated[
    list[str] | None,
    typer.Option(
        "--case",
        help="square, landscape, edit, alpha; completion, chat; or one of --cases. Repeatable.",
    ),
]
CaseFile = Annotated[
    Path | None, typer.Option("--cases", metavar="FILE", help="Your own cases, as TOML.")
]
NumOutputs = Annotated[
    int,
    typer.Option(
        "--num-outputs", parser=_outputs, metavar="1|2|4", help="Images that each request asks for."
    ),
]
ReferenceImage = Annotated[
    Path | None,
    typer.Option("--reference-image", metavar="FILE", help="What `edit` starts from."),
]
InferenceSteps = Annotated[
    int | None,
    typer.Option(
        "--inference-steps", min=1, help="Sampling steps; else the checkpoint's own schedule."
    ),
]
NoReplay = Annotated[
    bool, typer.Option("--no-replay", help="Leave what was captured unjudged for now.")
]
ReplayDevice = Annotated[
    str, typer.Option("--device", help="Where to replay: auto, cpu, cuda, cuda:N.")
]

EngineArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ENGINE OPTIONS…]", help="More options for the engine."),
]
HttpPort = Annotated[
    int,
    typer.Option(
        "--port", help="HTTP; the engine takes +1, +20 and +21 too.", rich_help_panel=ENGINE
    ),
]
Attach = Annotated[
    str | None,
    typer.Option(
        "--attach",
        metavar="URL",
        help="Use a server that runs already, started with KCLAB_ATTACH set.",
        rich_help_panel=ENGINE,
    ),
]
AttachFolder = Annotated[
    Path | None,
    typer.Option(
        "--attach-folder",
        envvar="KCLAB_ATTACH",
        metavar="DIR",
        help="The KCLAB_ATTACH folder of that server.",
        rich_help_panel=ENGINE,
    ),
]
SglangProgram = Annotated[
    str | None,
    typer.Option(
        "--sglang",
        metavar="PROGRAM",
        help="The sglang program; else the one on PATH, or beside this Python.",
        rich_help_panel=ENGINE,
    ),
]
OmpThreads = Annotated[
    int | None,
    typer.Option(
        "--omp-threads",
        min=1,
        help="OMP_NUM_THREADS of the engine; else the environment's own, or 8.",
        rich_help_panel=ENGINE,
    ),
]
StartTimeout = Annotated[
    float,
    typer.Option(
        "--start-timeout", min=1, help="Seconds that it may take to start.", rich_help_panel=ENGINE
    ),
]
RequestTimeout = Annotated[
    float,
    typer.Option(
        "--request-timeout", min=1, help="Seconds that a request may take.", rich_help_panel=ENGINE
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace", min=0, help="Seconds between SIGTERM and SIGKILL.", rich_help_panel=ENGINE
    ),
]

Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        help="What to look for; else what fits the model. Repeatable.",
        rich_help_panel=SCOPE,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="CLASS",
        help="Module class whose calls are the steps; else the model's.",
        rich_help_panel=SCOPE,
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="N,N…|all",
        help="Steps to capture; else 0,4,7 of an image (0,7 of several), all of a text.",
        rich_help_panel=SCOPE,
    ),
]
MaxPerAxes = Annotated[
    int | None,
    typer.Option(
        "--max-per-axes",
        metavar="K",
        min=0,
        help="Captures per definition and sizes; 0: no limit. Else 4 where all steps are captured.",
        rich_help_panel=SCOPE,
    ),
]

ModelName = Annotated[
    str | None,
    typer.Option("--model", help="The model's name; else its folder's.", rich_help_panel=NOTES),
]
ModelId = Annotated[
    str | None,
    typer.Option(
        "--model-id", help="What requests call the model; else by its kind.", rich_help_panel=NOTES
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", help="The model's revision; else its folder's.", rich_help_panel=NOTES
    ),
]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Where the model came from.", rich_help_panel=NOTES),
]
