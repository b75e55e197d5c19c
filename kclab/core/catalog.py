"""The definitions at hand: those shipped with kclab, and folders of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kclab.core.definition import Definition
from kclab.core.errors import BadUsage, DefinitionInvalid, EnvironmentLacking

Parse = Callable[[object, str], Definition]
"""`Definition.from_body`, or `Definition.from_foreign` where broken references are kept."""


def shipped_folder() -> Path:
    """The repository's `definitions/` in a checkout, the packaged copy in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "definitions", package / "_definitions"):
        if any(folder.glob("*/*.json")):
            return folder
    raise EnvironmentLacking("kclab's definitions are missing; reinstall kclab.")


def load_file(path: Path, parse: Parse = Definition.from_body) -> Definition:
    """The definition in one JSON file; DefinitionInvalid names the file and what is wrong."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise DefinitionInvalid(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise DefinitionInvalid(f"{path}: not valid JSON ({error}).") from error
    return parse(body, str(path))


def definition_files(folder: Path) -> Iterator[Path]:
    """Every `*.json` below `folder`, sorted; a link that leads out of it is refused."""
    root = folder.resolve()
    for path in sorted(folder.rglob("*.json")):
        if not path.resolve().is_relative_to(root):
            raise DefinitionInvalid(f"{path}: is a link out of {folder}; copy the file instead.")
        if path.is_file():
            yield path


def load_folder(path: Path, parse: Parse = Definition.from_body) -> dict[str, Definition]:
    """The definitions below a folder, by name; two different ones of one name are refused."""
    if not path.is_dir():
        raise BadUsage(f"{path}: no such folder of definitions.")
    found: dict[str, Definition] = {}
    for file in definition_files(path):
        definition = load_file(file, parse)
        other = found.setdefault(definition.name, definition)
        if other.sha256 != definition.sha256:
            raise DefinitionInvalid(f"{file}: another file in {path} defines {definition.name}.")
    return found


@dataclass(frozen=True, slots=True)
class Catalog:
    """Definitions by name."""

    definitions: Mapping[str, Definition]

    def get(self, name: str) -> Definition | None:
        """The definition called `name`, None when there is none."""
        return self.definitions.get(name)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self.definitions))

    def select(self, globs: Sequence[str]) -> dict[str, Definition]:
        """The definitions that any of the names or globs matches, all of them for no globs.

        Raises BadUsage for a glob that matches nothing.
        """
        chosen = {name: self.definitions[name] for name in self.names()}
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in chosen):
                raise BadUsage(
                    f"no definition matches {glob!r}; `kclab definitions list` shows them all."
                )
        if not globs:
            return chosen
        return {n: d for n, d in chosen.items() if any(fnmatchcase(n, glob) for glob in globs)}


def load_catalog(extra: Sequence[Path] = ()) -> Catalog:
    """The shipped definitions and those of `extra` folders; a later folder's win over earlier."""
    definitions = load_folder(shipped_folder())
    for folder in extra:
        definitions.update(load_folder(folder))
    return Catalog(definitions)
