"""Option groups: a dataclass whose fields are options, which a command takes as one parameter.

    @dataclass(frozen=True)
    class Names:
        tag: Annotated[list[str] | None, typer.Option(help="…")] = None

    @app.command()
    @grouped
    def label(context: typer.Context, names: Names, form: FormatOption = Format.TABLE) -> None: ...

Typer sees `--tag` where `names` stands, and the command gets `Names(tag=…)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer is to see it: each group's fields in the place of its parameter."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = list(_spread(inspect.signature(command), hints, groups))

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__module__ = command.__module__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    # What inspect.signature answers for a function that has it.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return run


def _spread(
    signature: inspect.Signature, hints: Mapping[str, Any], groups: Mapping[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in signature.parameters.items():
        if name not in groups:
            yield _parameter(name, parameter.default, hints[name])
            continue
        own = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield _parameter(field.name, default, own[field.name])


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
