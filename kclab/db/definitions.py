"""Definitions across their three homes: shipped with kclab, in a store, in folders of one's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kclab.core.catalog import load_file, load_folder, shipped_folder
from kclab.core.definition import Definition
from kclab.core.errors import BadUsage, DatabaseMissing, NothingMatched
from kclab.core.families import FAMILIES, family_of
from kclab.db.connection import writing
from kclab.db.queries.definitions import stored_definitions
from kclab.db.rows import add_definition
from kclab.db.store import Store, open_for_writing

MIN_PREFIX = 8
"""Hex digits that name a definition or reference by the beginning of its sha256."""


@dataclass(frozen=True, slots=True)
class KnownDefinition:
    """A definition and where it was found."""

    definition: Definition
    origin: str
    """`shipped`, a folder, or what the store says of one that is only there."""
    stored: bool
    """Whether the store holds exactly this version."""


def family_by_source(definition: Definition) -> str | None:
    """The family that a definition is an instance of: by its name and a reference of its."""
    family = family_of(definition.name)
    if family is None or definition.reference_sha256 not in FAMILIES[family].reference_sha256s:
        return None
    return family


def known_definitions(store: Store, folders: Sequence[Path] = ()) -> list[KnownDefinition]:
    """Every version of every definition at hand, by name; a missing database holds none."""
    stored = _stored(store)
    found: dict[tuple[str, str], tuple[Definition, str]] = {}
    for origin, folder in (("shipped", shipped_folder()), *((str(f), f) for f in folders)):
        for definition in load_folder(folder, Definition.from_foreign).values():
            found.setdefault((definition.name, definition.sha256), (definition, origin))
    for key, (definition, origin) in stored.items():
        found.setdefault(key, (definition, origin))
    known = [KnownDefinition(d, origin, key in stored) for key, (d, origin) in found.items()]
    return sorted(known, key=lambda entry: entry.definition.name)


def _stored(store: Store) -> dict[tuple[str, str], tuple[Definition, str]]:
    try:
        connection = store.read()
    except DatabaseMissing:
        return {}
    with closing(connection):
        return {
            (definition.name, definition.sha256): (definition, origin or "store")
            for definition, origin in stored_definitions(connection)
        }


def matching(known: Sequence[KnownDefinition], globs: Sequence[str]) -> list[KnownDefinition]:
    """Those that any name, glob or sha256 beginning names; NothingMatched for one that names none.

    A sha256, of a body or of a reference, needs its first 8 digits at least.
    """
    for glob in globs:
        if not any(_is_named(entry.definition, glob) for entry in known):
            raise NothingMatched(
                f"no definition matches {glob!r}; `kclab definitions list` shows them all."
            )
    if not globs:
        return list(known)
    return [entry for entry in known if any(_is_named(entry.definition, glob) for glob in globs)]


def _is_named(definition: Definition, glob: str) -> bool:
    if fnmatchcase(definition.name, glob):
        return True
    shas = (definition.sha256, definition.reference_sha256)
    return len(glob) >= MIN_PREFIX and any(sha.startswith(glob) for sha in shas)


def read_definitions(paths: Iterable[Path]) -> list[tuple[Definition, Path]]:
    """(definition, file or folder) of files and folders, all valid; DefinitionInvalid names one."""
    found: list[tuple[Definition, Path]] = []
    for path in paths:
        if path.is_dir():
            definitions = load_folder(path)
            if not definitions:
                raise BadUsage(f"{path}: holds no definition (*.json).")
            found.extend((definition, path) for definition in definitions.values())
        else:
            found.append((load_file(path), path))
    return found


def add_definitions(store: Store, definitions: Iterable[tuple[Definition, str]]) -> list[bool]:
    """Put (definition, origin) pairs into a store in one transaction, made if need be.

    Returns for each whether it is new there. Nothing of a reference runs.
    """
    open_for_writing(store)
    with closing(store.write()) as connection, writing(connection):
        return [_add(connection, definition, origin) for definition, origin in definitions]


def _add(connection: sqlite3.Connection, definition: Definition, origin: str) -> bool:
    before = connection.total_changes
    add_definition(connection, definition.body, family=family_by_source(definition), origin=origin)
    return connection.total_changes > before
