"""What a capture is asked for, checked before anything starts. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from kclab.core.catalog import load_catalog
from kclab.core.errors import BadUsage
from kclab.core.families import FAMILIES, family_of


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What to capture; see `CapturePlan` for each choice's meaning."""

    adapters: tuple[str, ...] = ("torch",)
    root: str | None = None
    definitions: tuple[str, ...] = ()
    definition_folders: tuple[Path, ...] = ()
    steps: tuple[int, ...] | None = None
    max_per_axes: int | None = 4
    max_bytes: int | None = 4 << 30
    define_missing: bool = False
    per: str = "variant"
    on_full: str = "wait"
    strict: bool = False
    tags: tuple[str, ...] = ()
    note: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for each receipt: model, revision, source."""


def check_options(options: CaptureOptions) -> None:
    """Raise BadUsage for an adapter, definition or folder that means nothing. Loads no torch."""
    known = {point.name for point in entry_points(group="kclab.adapters")}
    for name in options.adapters:
        if name not in known:
            raise BadUsage(f"no adapter {name!r}; there are {', '.join(sorted(known))}.")
    catalog = load_catalog(options.definition_folders)
    for glob in options.definitions:
        makeable = any(_may_make(glob, family) for family in FAMILIES)
        if makeable and options.define_missing:
            continue
        try:
            catalog.select([glob])
        except BadUsage as error:
            hint = " Or let --define-missing make what it names." if makeable else ""
            raise BadUsage(f"{error}{hint}") from None


def _may_make(glob: str, family: str) -> bool:
    """Whether --define-missing could bring a definition of `family` that `glob` matches."""
    prefix = glob[: min((glob.find(c) for c in "*?[" if c in glob), default=len(glob))]
    if prefix == glob:
        return family_of(glob) == family
    return prefix.startswith(family) or family.startswith(prefix) or fnmatchcase(family, glob)


def parse_steps(text: str | None) -> tuple[int, ...] | None:
    """`0,4,7` as numbers, None for None or `all`; raises BadUsage for anything else."""
    if text is None or text.strip() == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadUsage(f"--steps {text!r}: write step numbers from 0 with commas, as 0,4,7.")
    return tuple(sorted({int(part) for part in parts}))


def parse_facts(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs as receipt facts; values that are JSON are taken as such."""
    facts: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise BadUsage(f"--fact {pair!r}: write name=value, as model=Qwen/Qwen-Image-2.1.")
        try:
            facts[name] = json.loads(value)
        except ValueError:
            facts[name] = value
    return facts
