"""Where two runs' captures differ, site by site.

A site is a place in the model at a step; a run that meets it several times (several requests) has
several occurrences of it, which are matched in the order they were captured.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Match(StrEnum):
    """How one site of two runs compares."""

    IDENTICAL = "identical"
    """The same inputs gave the same outputs, byte for byte."""
    OUTPUTS_DIFFER = "outputs differ"
    """The same inputs gave other outputs."""
    INPUTS_DIFFER = "inputs differ"
    """The difference came in from before this site."""
    ONLY_A = "only in A"
    ONLY_B = "only in B"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One capture as the comparison sees it."""

    capture: str
    workload: str
    workload_id: int
    definition: str
    axes: Mapping[str, int]
    module_path: str | None
    operation: str
    step: int | None
    variant: str | None
    rank: int | None
    outputs: Mapping[str, str]
    """Output name to blob digest."""


@dataclass(frozen=True, slots=True)
class SiteMatch:
    """One site in two runs; `a` or `b` is None where only the other run has it."""

    match: Match
    a: Occurrence | None
    b: Occurrence | None

    @property
    def place(self) -> Occurrence:
        """The occurrence that says where this is."""
        found = self.a or self.b
        assert found is not None
        return found

    @property
    def differing_outputs(self) -> list[str]:
        """Names of the outputs whose bytes differ, where both runs have the site."""
        if self.a is None or self.b is None:
            return []
        names = [*self.a.outputs, *(n for n in self.b.outputs if n not in self.a.outputs)]
        return [n for n in names if self.a.outputs.get(n) != self.b.outputs.get(n)]


def match_sites(connection: sqlite3.Connection, run_a: int, run_b: int) -> list[SiteMatch]:
    """Every site of two runs (ids), in order of occurrence, step and capture."""
    first, second = _occurrences(connection, run_a), _occurrences(connection, run_b)
    keys = sorted({**second, **first}, key=lambda key: (first if key in first else second)[key][0])
    return [
        _matched(first[key][1] if key in first else None, second[key][1] if key in second else None)
        for key in keys
    ]


def differing_inputs(connection: sqlite3.Connection, match: SiteMatch) -> list[str]:
    """Names of the inputs that are not the same in both runs."""
    if match.a is None or match.b is None:
        return []
    first = _inputs(connection, match.a.workload_id)
    second = _inputs(connection, match.b.workload_id)
    return [n for n in {**first, **second} if first.get(n) != second.get(n)]


def _occurrences(
    connection: sqlite3.Connection, run_id: int
) -> dict[tuple[str, int], tuple[tuple[int, int, int], Occurrence]]:
    """(site, how many-th time) to (sort key, occurrence)."""
    rows = connection.execute(
        "SELECT c.uuid AS capture, c.site, w.uuid AS workload, c.workload_id, w.axes,"
        " d.name AS definition, c.module_path, c.operation, c.step, c.variant, c.rank,"
        " (SELECT json_group_object(name, blob_sha256) FROM capture_output o"
        "  WHERE o.capture_id = c.id) AS outputs"
        " FROM capture c JOIN workload w ON w.id = c.workload_id"
        " JOIN definition d ON d.id = w.definition_id"
        " WHERE c.run_id = ? ORDER BY c.captured_us, c.id",
        (run_id,),
    )
    seen: Counter[str] = Counter()
    found = {}
    for index, row in enumerate(rows):
        fields = dict(row)
        site = fields.pop("site")
        fields["outputs"] = json.loads(fields["outputs"])
        fields["axes"] = json.loads(fields["axes"])
        step = -1 if row["step"] is None else int(row["step"])
        found[site, seen[site]] = ((seen[site], step, index), Occurrence(**fields))
        seen[site] += 1
    return found


def _matched(a: Occurrence | None, b: Occurrence | None) -> SiteMatch:
    if a is None or b is None:
        return SiteMatch(Match.ONLY_B if a is None else Match.ONLY_A, a, b)
    if a.workload != b.workload:
        return SiteMatch(Match.INPUTS_DIFFER, a, b)
    same = a.outputs == b.outputs
    return SiteMatch(Match.IDENTICAL if same else Match.OUTPUTS_DIFFER, a, b)


def _inputs(connection: sqlite3.Connection, workload_id: int) -> dict[str, Any]:
    rows = connection.execute(
        "SELECT name, coalesce(blob_sha256, scalar, random) FROM workload_input"
        " WHERE workload_id = ? ORDER BY name",
        (workload_id,),
    )
    return dict(rows.fetchall())
