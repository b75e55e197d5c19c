"""`kclab definitions`: list, show, validate, trust, add and make operator definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kclab.cli.definition_rows import LIST_COLUMNS, TENSOR_COLUMNS, summary, tensors, word
from kclab.cli.output import Column, Format, FormatOption, note, print_fields, print_rows
from kclab.cli.show import short, show_time
from kclab.cli.store import current_store
from kclab.core import trust as trusting
from kclab.core.catalog import definition_files, load_file
from kclab.core.definition import Definition
from kclab.core.definition_files import definition_text, write_definition
from kclab.core.definition_lint import portability_notes
from kclab.core.errors import BadUsage, CheckFailed, DefinitionInvalid, NothingMatched
from kclab.core.families import FAMILIES, Family
from kclab.core.units import counted
from kclab.db.definitions import (
    add_definitions,
    known_definitions,
    matching,
    read_definitions,
)

app = typer.Typer(no_args_is_help=True, help="List, show, validate, trust and make definitions.")

FoldersOption = Annotated[
    list[Path] | None,
    typer.Option("--definitions", metavar="DIR", help="Definitions of your own; repeatable."),
]


@app.command("list")
def list_definitions(
    context: typer.Context,
    globs: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|GLOB]...", help="Only these.")
    ] = None,
    folders: FoldersOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """List the definitions at hand: shipped, in the store, and in folders of your own."""
    known = matching(known_definitions(current_store(context), folders or ()), globs or ())
    print_rows([summary(entry) for entry in known], LIST_COLUMNS, form)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name, or the beginning of a sha256.")],
    folders: FoldersOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show one definition: its interface, its tolerances and its reference's source."""
    known = matching(known_definitions(current_store(context), folders or ()), [name])
    if len({entry.definition.name for entry in known}) > 1:
        names = ", ".join(entry.definition.name for entry in known)
        raise BadUsage(f"{name!r} means several definitions: {names}.")
    for other in known[1:]:
        sha256 = other.definition.sha256
        note(f"another version ({other.origin}): kclab definitions show {sha256[:12]}")
    definition = known[0].definition
    if definition.reference_problem:
        note(f"it cannot be replayed: {definition.reference_problem}")
    fields = summary(known[0])
    if form is not Format.TABLE:
        body = {"body": definition.body} if form is Format.JSON else {}
        print_fields({**fields, **body}, form)
        return
    print_fields({k: v if v is None else word(v) for k, v in fields.items()}, form)
    print_rows(tensors(definition), TENSOR_COLUMNS, form)
    typer.echo(definition.reference)


VALIDATE_COLUMNS = (
    Column("file", wide=True),
    Column("status"),
    Column("name"),
    Column("detail", wrap=True),
)


@app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(help="Definition files, or folders of them.")],
    form: FormatOption = Format.TABLE,
) -> None:
    """Check definition files: exit 1 when one is broken. Nothing of a reference runs."""
    rows = [_validated(file) for path in paths for file in _files(path)]
    if not rows:
        raise NothingMatched(f"no *.json below {', '.join(map(str, paths))}.")
    print_rows(rows, VALIDATE_COLUMNS, form)
    if broken := sum(row["status"] == "failed" for row in rows):
        raise CheckFailed(f"{broken} of {counted(len(rows), 'definition')} cannot be used.")


def _detail(error: DefinitionInvalid, file: Path) -> str:
    """What is wrong, without the file, which has a column of its own."""
    return str(error).removeprefix(f"{file}: ").removeprefix(f"{file} ")


def _files(path: Path) -> list[Path]:
    return list(definition_files(path)) if path.is_dir() else [path]


def _validated(file: Path) -> dict[str, Any]:
    try:
        definition = load_file(file)
    except DefinitionInvalid as error:
        return {"file": str(file), "status": "failed", "name": None, "detail": _detail(error, file)}
    notes = "; ".join(portability_notes(definition, file.absolute())) or None
    return {"file": str(file), "status": "passed", "name": definition.name, "detail": notes}


TRUST_COLUMNS = (
    Column("reference_sha256", show=short),
    Column("note", wide=True),
    Column("added_us", "added", show=show_time, right=True),
)


@app.command()
def trust(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="Reference sha256, definition name, file or folder."),
    ] = None,
    note_text: Annotated[str, typer.Option("--note", help="Why, for your own list.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Trust them no longer.")] = False,
    folders: FoldersOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Let references run on this machine; without a target, show which may.

    A reference is code: read it first (`kclab definitions show NAME`). kclab's own families and
    shipped definitions are trusted always, and are not on the list.
    """
    if not targets:
        rows = [
            {"reference_sha256": e.reference_sha256, "note": e.note, "added_us": e.added_us}
            for e in trusting.trusted()
        ]
        print_rows(rows, TRUST_COLUMNS, form, empty="nothing beyond kclab's own references.")
        return
    chosen = [found for target in targets for found in _references(context, target, folders or [])]
    for sha256, name in dict.fromkeys(chosen):
        note(f"{_untrust(sha256) if remove else _trust(sha256, note_text or name)} {sha256} {name}")


def _trust(sha256: str, text: str) -> str:
    if trusting.is_trusted(sha256):
        return "already trusted:"
    trusting.trust(sha256, text)
    return "trusted:"


def _untrust(sha256: str) -> str:
    return "no longer trusted:" if trusting.untrust(sha256) else "was not on the list:"


def _references(context: typer.Context, target: str, folders: list[Path]) -> list[tuple[str, str]]:
    """(reference sha256, what it is called) of what a target names."""
    if Path(target).exists():
        return [(d.reference_sha256, d.name) for d, _ in read_definitions([Path(target)])]
    if len(target) == 64 and not set(target) - set("0123456789abcdef"):
        return [(target, "")]
    known = matching(known_definitions(current_store(context), folders), [target])
    return [(entry.definition.reference_sha256, entry.definition.name) for entry in known]


@app.command()
def add(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Definition files, or folders of them.")],
) -> None:
    """Put definitions into the store; all of them, or none when one is broken."""
    read = [(definition, str(origin)) for definition, origin in read_definitions(paths)]
    _add(context, read)


def _add(context: typer.Context, definitions: list[tuple[Definition, str]]) -> None:
    store = current_store(context)
    new = add_definitions(store, definitions)
    already = len(new) - sum(new)
    note(f"{store.database}: {counted(sum(new), 'new definition')}, {already} already there.")
    for definition, _ in definitions:
        if not trusting.is_trusted(definition.reference_sha256):
            note(f"its reference may not run here yet: kclab definitions trust {definition.name}")


@app.command()
def families(form: FormatOption = Format.TABLE) -> None:
    """List the families that `make` knows, with their sizes and options."""
    columns = (Column("family"), Column("sizes"), Column("options"), Column("computes", wide=True))
    rows = [
        {
            "family": family.name,
            "sizes": " ".join(family.sizes),
            "options": " ".join(_option(key, value) for key, value in family.options.items()),
            "computes": family.summary,
        }
        for family in FAMILIES.values()
    ]
    print_rows(rows, columns, form)


def _option(key: str, default: object) -> str:
    """`dtype=bf16`, `bias=false`; an option that follows a size has no default to show."""
    if default is None:
        return key
    return f"{key}={str(default).lower() if isinstance(default, bool) else default}"


@app.command()
def make(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="See `kclab definitions families`.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="NAME=VALUE", help="A size or option; repeatable."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Write <op_type>/<name>.json below this folder.")
    ] = None,
    into_store: Annotated[bool, typer.Option("--add", help="Put it into the store.")] = False,
    shipped: Annotated[bool, typer.Option(help="Every definition that kclab ships.")] = False,
) -> None:
    """Write a family's definition for given sizes: to stdout, a folder or the store.

    For example: kclab definitions make dense_gemm --size n=4096 --size k=12288 --size bias=true
    """
    made = _made(name, sizes or [], shipped)
    for definition in made:
        if to is not None:
            note(f"wrote {write_definition(to, definition)}")
        elif not into_store:
            typer.echo(definition_text(definition), nl=False)
    if into_store:
        _add(context, [(definition, "made") for definition in made])


def _made(name: str | None, sizes: list[str], shipped: bool) -> list[Definition]:
    if shipped:
        from kclab.core.families.shipped import shipped_definitions

        return shipped_definitions()
    return [_family(name).make(**dict(_parameter(text) for text in sizes))]


def _family(name: str | None) -> Family:
    if name is None or name not in FAMILIES:
        found = "name a family" if name is None else f"{name!r} is no family"
        raise BadUsage(f"{found}; there are {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def _parameter(text: str) -> tuple[str, int | bool | str]:
    """`n=4096`, `bias=true`, `dtype=fp16`."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise BadUsage(f"--size {text}: write NAME=VALUE, for instance --size n=4096.")
    if value.isdecimal():
        return key, int(value)
    return key, {"true": True, "false": False}.get(value, value)
