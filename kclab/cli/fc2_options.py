"""Options that the FC2 commands share, and how they become a subject."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kclab.cli.options import size_option
from kclab.core.errors import BadUsage

if TYPE_CHECKING:
    from kclab.fc2.lab import Subject
    from kclab.fc2.problem import Problem
    from kclab.fc2.search import Options

MIB = 1 << 20


class Dtype(StrEnum):
    """What a GEMM's operands are made of."""

    BF16 = "bf16"
    FP8 = "fp8_e4m3"
    NVFP4 = "nvfp4"


BoundaryArgument = Annotated[
    str | None,
    typer.Argument(metavar="[BOUNDARY]", help="A stored boundary: its workload's uuid, or `last`."),
]
ShapeOption = Annotated[
    str | None, typer.Option("--shape", metavar="MxNxK", help="Make a synthetic boundary instead.")
]
BoundariesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BOUNDARY]...", help="Stored boundaries: their workloads' uuids, or `last`."
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="MxNxK", help="Make a synthetic boundary instead; repeatable."),
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Operands of --shape.")]
FastOption = Annotated[
    bool,
    typer.Option(
        "--fast-accumulation/--no-fast-accumulation",
        help="FP8: sum products below fp32. Part of the boundary.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of a synthetic boundary's content.")]
BackendOption = Annotated[
    str | None,
    typer.Option("--backend", help="cublaslt or cpu; by default cublaslt where there is a GPU."),
]
WorkspaceOption = Annotated[
    int, size_option("--workspace", "--workspace-bytes", help="Workspace given to every config.")
]
HotOption = Annotated[
    bool, typer.Option("--hot", help="Leave the cache as it is between timed launches.")
]
CandidateOption = Annotated[
    str | None,
    typer.Option(
        "--candidate",
        help="enumerate:BUDGET:RANK, a JSON file or text, or nine numbers joined by ':'. "
        "By default the stored best that is still valid.",
    ),
]


WarmupOption = Annotated[
    int, typer.Option("--warmup", min=0, help="Untimed launches of each arm before it.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", help="Also write the run here, in the seed script's JSON shape."),
]

DEFAULT_SEED = 440_420


@dataclass(frozen=True)
class Measured:
    """The boundary and the config that a command measures."""

    boundary: BoundaryArgument = None
    shape: ShapeOption = None
    dtype: DtypeOption = Dtype.BF16
    fast_accumulation: FastOption = False
    seed: SeedOption = DEFAULT_SEED
    backend: BackendOption = None
    workspace: WorkspaceOption = 32 * MIB
    hot: HotOption = False
    candidate: CandidateOption = None

    def subject(self) -> Subject:
        """What to measure. Raises BadUsage."""
        return make_subject(
            self.boundary,
            self.shape,
            self.dtype,
            self.fast_accumulation,
            self.seed,
            self.backend,
            self.workspace,
            self.hot,
        )


BUDGETS = [n * MIB for n in (0, 4, 8, 16, 32, 64)]

BudgetsOption = Annotated[
    list[int] | None,
    typer.Option(
        "--workspace-budgets", min=0, help="Bytes to ask the heuristic about; repeatable."
    ),
]
RequestedOption = Annotated[
    int, typer.Option("--requested-count", min=1, help="Algorithms to ask for per budget.")
]
LimitOption = Annotated[
    int | None,
    typer.Option("--candidate-limit", min=1, help="Distinct launches to try at most."),
]
BudgetOption = Annotated[
    str, typer.Option("--budget", help="Time to search, as 120s or 2m; an answer comes first.")
]
UntilOption = Annotated[
    str, typer.Option("--until", help="Last stage: heuristics, neighbours or space.")
]
ExhaustiveOption = Annotated[
    bool, typer.Option("--exhaustive", help="Time every distinct launch; no time budget.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from the last sweep's candidates.")
]
ConfirmOption = Annotated[
    int, typer.Option("--confirm", min=0, help="Fresh processes that must agree.")
]


@dataclass(frozen=True)
class Searching:
    """How far a sweep goes."""

    budget: BudgetOption = "60s"
    until: UntilOption = "space"
    exhaustive: ExhaustiveOption = False
    resume: ResumeOption = False
    workspace_budgets: BudgetsOption = None
    requested_count: RequestedOption = 32
    candidate_limit: LimitOption = None
    confirm: ConfirmOption = 0

    def options(self) -> Options:
        """The same for the search. Raises BadUsage."""
        from kclab.fc2.search import STAGES, Options

        if self.until not in STAGES:
            raise BadUsage(f"--until {self.until}: one of {', '.join(STAGES)}.")
        seconds = float("inf") if self.exhaustive else parse_seconds(self.budget)
        budgets = self.workspace_budgets or BUDGETS
        return Options(
            budgets,
            self.requested_count,
            seconds,
            self.until,
            self.exhaustive,
            self.candidate_limit,
        )


def make_problem(shape: str, dtype: Dtype, fast: bool) -> Problem:
    """The problem of --shape, --dtype and --fast-accumulation."""
    from kclab.fc2.problem import Precision, Problem, parse_shape

    return Problem(Precision(dtype.value), *parse_shape(shape), fast)


def make_subject(
    boundary: str | None,
    shape: str | None,
    dtype: Dtype,
    fast: bool,
    seed: int,
    backend: str | None,
    workspace: int,
    hot: bool,
) -> Subject:
    """What to measure. Raises BadUsage for both a boundary and a shape."""
    from kclab.fc2.backends import default_backend
    from kclab.fc2.lab import Subject

    if boundary is not None and shape is not None:
        raise BadUsage("name a stored boundary or a --shape, not both.")
    problem = None if shape is None else make_problem(shape, dtype, fast)
    return Subject(
        backend=backend or default_backend(),
        boundary=boundary,
        problem=problem,
        seed=seed,
        workspace_bytes=workspace,
        cold=not hot,
    )


def parse_seconds(text: str) -> float:
    """Seconds of `120s`, `2m`, `1.5h` or a plain number. Raises BadUsage."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        value = float(number) * units[unit]
    except ValueError:
        raise BadUsage(f'"{text}" is not a time; write 120s, 2m or plain seconds.') from None
    if not 0 <= value < float("inf"):
        raise BadUsage(f'"{text}" is not a time; write 120s, 2m or plain seconds.')
    return value
