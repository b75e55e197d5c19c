"""Options that say which MiniMax-H3 an FC2 command runs, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kclab.cli.fc2_options import (
    MIB,
    BackendOption,
    CandidateOption,
    Dtype,
    DtypeOption,
    FastOption,
    WorkspaceOption,
)
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclab.fc2.h3_options import H3Options

MODEL = "Model"
REQUEST = "Request"

CanonicalOption = Annotated[
    bool,
    typer.Option(
        "--canonical",
        rich_help_panel=MODEL,
        help="MiniMax-H3 at full size, random weights: 37,810 tokens.",
    ),
]
TinyOption = Annotated[
    bool,
    typer.Option(
        "--tiny", rich_help_panel=MODEL, help="The same 50 blocks, small enough for a CPU."
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", "--model-path", rich_help_panel=MODEL, help="A pruned checkpoint's weights."
    ),
]
HashOption = Annotated[
    bool,
    typer.Option(
        "--checkpoint-sha256", rich_help_panel=MODEL, help="Compute the checkpoint's sha256, too."
    ),
]
InputOption = Annotated[
    Path | None,
    typer.Option(
        "--input", "--capture", rich_help_panel=MODEL, help="Captured activations: input.pt."
    ),
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=N",
        rich_help_panel=MODEL,
        help="A size of the random model, as hidden=1024; repeatable.",
    ),
]
BlocksOption = Annotated[
    list[int] | None,
    typer.Option("--blocks", rich_help_panel=MODEL, help="Blocks to take; 0, 24 and 49 stay."),
]
ProbeOption = Annotated[
    int,
    typer.Option(
        "--probe-block", rich_help_panel=MODEL, help="Whose boundary candidates are chosen on."
    ),
]
AttentionOption = Annotated[
    str | None,
    typer.Option(
        "--attention", rich_help_panel=MODEL, help="Attention backend, as diffusers names it."
    ),
]
WidthOption = Annotated[
    int | None, typer.Option("--width", rich_help_panel=REQUEST, help="Pixels.")
]
HeightOption = Annotated[
    int | None, typer.Option("--height", rich_help_panel=REQUEST, help="Pixels.")
]
FramesOption = Annotated[
    int | None, typer.Option("--frames", rich_help_panel=REQUEST, help="Aligned up to 17n + 5.")
]
TextOption = Annotated[
    int | None, typer.Option("--text-tokens", rich_help_panel=REQUEST, help="Prompt length.")
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", rich_help_panel=REQUEST, help="Sampler steps.")
]
SamplerStepOption = Annotated[
    int | None,
    typer.Option("--sampler-step", rich_help_panel=REQUEST, help="Captured step, from 1."),
]
H3SeedOption = Annotated[
    int | None,
    typer.Option("--seed", rich_help_panel=REQUEST, help="Of weights, noise and text; 440420."),
]


@dataclass(frozen=True)
class Model:
    """Which model runs."""

    canonical: CanonicalOption = False
    tiny: TinyOption = False
    checkpoint: CheckpointOption = None
    checkpoint_sha256: HashOption = False


@dataclass(frozen=True)
class Gated:
    """What stands in FC2's place, and on what."""

    dtype: DtypeOption = Dtype.BF16
    fast_accumulation: FastOption = False
    backend: BackendOption = None
    candidate: CandidateOption = None
    workspace: WorkspaceOption = 32 * MIB


@dataclass(frozen=True)
class Request:
    """The model's sizes and blocks, and what it is asked to make."""

    size: SizesOption = None
    blocks: BlocksOption = None
    probe_block: ProbeOption = 24
    attention: AttentionOption = None
    width: WidthOption = None
    height: HeightOption = None
    frames: FramesOption = None
    text_tokens: TextOption = None
    steps: StepsOption = None
    seed: H3SeedOption = None


def is_h3(values: dict[str, Any]) -> bool:
    """Whether a command's parameters name a model."""
    return any(values.get(name) for name in ("canonical", "tiny", "checkpoint", "input_"))


def make_h3_options(values: dict[str, Any]) -> H3Options:
    """The model and request of a command's parameters. Raises BadUsage."""
    from kclab.fc2.h3_options import REQUIRED_BLOCKS, H3Options
    from kclab.fc2.problem import Precision
    from kclab.h3.request import CANONICAL_REQUEST, TINY_REQUEST
    from kclab.h3.sizes import CANONICAL, TINY

    if not is_h3(values):
        raise BadUsage("name a model: --canonical, --tiny or --checkpoint FILE.")
    if values["canonical"] and values["tiny"]:
        raise BadUsage("--canonical and --tiny are two models; name one.")
    checkpoint = values["checkpoint"]
    if checkpoint is not None and values["size"]:
        raise BadUsage("a checkpoint has its own sizes; leave --size out.")
    request = TINY_REQUEST if values["tiny"] else CANONICAL_REQUEST
    names = ("width", "height", "frames", "text_tokens", "steps", "sampler_step", "seed")
    asked = {name: values[name] for name in names if values[name] is not None}
    return H3Options(
        sizes=replace(TINY if values["tiny"] else CANONICAL, **parse_sizes(values["size"] or [])),
        request=replace(request, **asked),
        blocks=tuple(dict.fromkeys(values["blocks"] or REQUIRED_BLOCKS)),
        probe=values["probe_block"],
        precision=Precision(Dtype(values["dtype"]).value),
        fast_accumulation=values["fast_accumulation"],
        attention=values["attention"],
        checkpoint=checkpoint,
        hash_checkpoint=values["checkpoint_sha256"],
        input=values["input_"],
    )


def parse_sizes(texts: Sequence[str]) -> dict[str, Any]:
    """`hidden=1024` as {"hidden": 1024}. Raises BadUsage naming the sizes that there are."""
    from kclab.h3.sizes import CANONICAL, Sizes

    known = {name: type(getattr(CANONICAL, name)) for name in Sizes.__dataclass_fields__}
    found: dict[str, Any] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in known:
            raise BadUsage(f"--size {text}: sizes are {', '.join(known)}.")
        try:
            found[name] = known[name](number)
        except ValueError:
            raise BadUsage(f"--size {text}: write it NAME=NUMBER, as hidden=1024.") from None
    return found
