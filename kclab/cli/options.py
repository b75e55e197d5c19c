"""Options that several commands share, parsed at the edge into values that cannot be wrong.

Use them as parameter types: `since: SinceOption = None` is then microseconds UTC or None. A bad
value raises BadUsage, so the command ends with one sentence and exit code 2 before it starts.
Sizes: `budget: Annotated[int | None, size_option("--workspace", help="...")] = None`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kclab.cli.output import note
from kclab.core.errors import BadUsage
from kclab.core.ray_address import parse_address
from kclab.core.units import describe_size, parse_share, parse_size
from kclab.core.when import describe_instant, parse_when
from kclab.db.queries.selection import By

WHEN_HELP = "yesterday, monday, 2h, 3 days ago, 2026-11-29, 2026-11-29T10:00Z"


def _when(text: str | int) -> int:
    return text if isinstance(text, int) else parse_when(text)


def _size(text: str | int) -> int:
    return text if isinstance(text, int) else parse_size(text)


def _share(text: str | float) -> float:
    return text if isinstance(text, float) else parse_share(text)


def when_option(*names: str, help: str) -> Any:
    """An option whose value is a point in time, given to the command as microseconds UTC."""
    return typer.Option(*names, parser=_when, metavar="WHEN", help=help)


def size_option(*names: str, help: str, **more: Any) -> Any:
    """An option whose value is a byte size (`32MiB`, `32MB`, `33554432`), given as an int."""
    return typer.Option(*names, parser=_size, metavar="SIZE", help=help, **more)


SinceOption = Annotated[
    int | None, when_option("--since", help=f"At or after this time: {WHEN_HELP}.")
]
UntilOption = Annotated[
    int | None, when_option("--until", help="Before this time; same forms as --since.")
]
BeforeOption = Annotated[
    int | None, when_option("--before", help="Started before this time; same forms as --since.")
]
SizeOption = Annotated[int | None, size_option(help="Bytes: 32MiB, 32MB or plain bytes.")]
"""A size option named after its parameter; `size_option` gives it its own help."""

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's uuid, its beginning, or `last`.")
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Only this run: uuid, its beginning, or `last`."),
]
DefinitionOption = Annotated[
    list[str] | None,
    typer.Option("--definition", metavar="GLOB", help="Only definitions like this; repeatable."),
]
ByOption = Annotated[
    By, typer.Option("--by", help="--since and --until mean when captured, or arrived here.")
]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most this many.")]
RegressionOption = Annotated[
    float | None,
    typer.Option(
        "--fail-on-regression",
        parser=_share,
        metavar="PERCENT",
        help="Exit 1 only for what is proven slower, and maybe by as much as this: 3%.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        parser=parse_address,
        metavar="[ADDRESS]",
        help="Spread the work over a Ray cluster: HOST:PORT; auto, or no ADDRESS, for the one that"
        " runs here, else one started for this; local for the latter always.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def show_range(since: int | None, until: int | None) -> None:
    """Say on stderr which instants --since and --until resolved to.

    Raises BadUsage where nothing can lie between them.
    """
    show_instant("since", since)
    show_instant("until", until)
    if since is not None and until is not None and since >= until:
        raise BadUsage("--since is not before --until, so nothing can lie between them.")


def show_instant(name: str, instant: int | None) -> None:
    """Say on stderr which instant a time was understood as."""
    if instant is not None:
        note(f"{name} {describe_instant(instant)}")


def show_size(name: str, size: int | None) -> None:
    """Say on stderr how many bytes a size option was understood as."""
    if size is not None:
        note(f"{name} {describe_size(size)}")
