"""Which captures of a store to replay, and reading them, a batch at a time."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from kclab.blob.folder import BlobFolder
from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.definition import Definition
from kclab.core.errors import DefinitionInvalid, NothingMatched
from kclab.core.times import Microseconds
from kclab.core.units import counted
from kclab.core.when import describe_instant
from kclab.db.queries.runs import find_run
from kclab.replay.subject import NO_ENGINE_OUTPUT, Decided, Subject, random_inputs
from kclab.replay.task import StoredTensor

BATCH = 256
"""Captures read at a time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to replay; every condition narrows it, and none means everything."""

    since: Microseconds | None = None
    """Captured at or after (a workload without a capture: arrived)."""
    until: Microseconds | None = None
    """Captured before."""
    definitions: Sequence[str] = ()
    """Names or globs."""
    workloads: Sequence[str] = ()
    """uuids of workloads or receipts, or how they begin."""
    run: str | None = None
    """The capture or import run: uuid, its beginning, or `last`."""
    never_passed: bool = False
    failed: bool = False
    """The last verdict is `failed` or `error`."""

    @property
    def stated(self) -> dict[str, Any]:
        """The conditions that were given, by name."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One selected pair of rows."""

    workload_id: int
    capture_id: int | None


def choose(connection: sqlite3.Connection, selection: Selection) -> list[Chosen]:
    """The selected captures, and workloads without one, by definition and age."""
    conditions, values = _conditions(connection, selection)
    rows = connection.execute(
        "SELECT w.id, c.id FROM workload w JOIN definition d ON d.id = w.definition_id"
        " LEFT JOIN capture c ON c.workload_id = w.id"
        f" WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY d.name, w.id, c.id",
        values,
    ).fetchall()
    return [Chosen(row[0], row[1]) for row in rows]


def _conditions(
    connection: sqlite3.Connection, selection: Selection
) -> tuple[list[str], list[Any]]:
    terms: list[tuple[str, list[Any]]] = []
    if selection.since is not None:
        terms.append(("coalesce(c.captured_us, w.added_us) >= ?", [selection.since]))
    if selection.until is not None:
        terms.append(("coalesce(c.captured_us, w.added_us) < ?", [selection.until]))
    if selection.definitions:
        names = _matching(connection, selection.definitions)
        terms.append(("d.name IN (SELECT value FROM json_each(?))", [json.dumps(names)]))
    if selection.workloads:
        begins = [f"{text.lower()}*" for text in selection.workloads]
        either = " OR ".join(["w.uuid GLOB ? OR c.uuid GLOB ?"] * len(begins))
        terms.append((f"({either})", [b for begin in begins for b in (begin, begin)]))
    if selection.run is not None:
        terms.append(("c.run_id = ?", [_capture_run(connection, selection.run)]))
    if selection.never_passed:
        terms.append(
            (
                "c.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM replay p"
                " WHERE p.capture_id = c.id AND p.status = 'passed')",
                [],
            )
        )
    if selection.failed:
        terms.append(
            (
                "(SELECT p.status FROM replay p WHERE p.capture_id = c.id AND p.status <> 'skipped'"
                " ORDER BY p.started_us DESC, p.id DESC LIMIT 1) IN ('failed', 'error')",
                [],
            )
        )
    return [term for term, _ in terms], [value for _, given in terms for value in given]


def _matching(connection: sqlite3.Connection, globs: Sequence[str]) -> list[str]:
    names = [row[0] for row in connection.execute("SELECT DISTINCT name FROM definition")]
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def _capture_run(connection: sqlite3.Connection, text: str) -> int:
    if text != "last":
        return int(find_run(connection, text)["id"])
    row = connection.execute("SELECT max(run_id) FROM capture").fetchone()
    if row[0] is None:
        raise NothingMatched("no run in this store has captures.")
    return int(row[0])


def what_there_is(connection: sqlite3.Connection, selection: Selection) -> str:
    """Why nothing was selected, in a sentence that says what the store holds."""
    captures, definitions = connection.execute(
        "SELECT (SELECT count(*) FROM capture),"
        " (SELECT count(DISTINCT definition_id) FROM workload)"
    ).fetchone()
    if not definitions:
        return "the store holds no workload; `kclab capture run` or `kclab import` brings some."
    options = ", ".join(_told(name, value) for name, value in selection.stated.items())
    return (
        f"nothing to replay matches {options}; the store holds {counted(captures, 'capture')}"
        f" of {counted(definitions, 'definition')} (`kclab captures list`)."
    )


def _told(name: str, value: Any) -> str:
    """A condition as it was typed: `--never-passed`, `--workload 3f2a`."""
    option = f"--{name.removesuffix('s') if isinstance(value, tuple) else name}".replace("_", "-")
    if value is True:
        return option
    if name in ("since", "until"):
        return f"{option} {describe_instant(value)}"
    return " ".join(f"{option} {one}" for one in (value if isinstance(value, tuple) else (value,)))


class StoreSubjects:
    """Reads chosen rows into subjects."""

    def __init__(self, connection: sqlite3.Connection, blobs: BlobFolder) -> None:
        self.connection = connection
        self.blobs = blobs
        self._definitions: dict[int, Definition | Decided] = {}

    def read(self, chosen: Sequence[Chosen]) -> Iterator[Subject]:
        """The subjects of all chosen rows, in their order."""
        for start in range(0, len(chosen), BATCH):
            yield from self._batch(chosen[start : start + BATCH])

    def _batch(self, chosen: Sequence[Chosen]) -> Iterator[Subject]:
        workload_ids = json.dumps(sorted({c.workload_id for c in chosen}))
        capture_ids = json.dumps([c.capture_id for c in chosen if c.capture_id is not None])
        workloads = {
            row["id"]: row
            for row in self.connection.execute(
                "SELECT w.id, w.uuid, w.axes, w.definition_id, d.name FROM workload w"
                " JOIN definition d ON d.id = w.definition_id"
                " WHERE w.id IN (SELECT value FROM json_each(?))",
                (workload_ids,),
            )
        }
        inputs = self._grouped(
            "SELECT i.workload_id, i.name, i.scalar, i.random, b.sha256, b.present, b.hint"
            " FROM workload_input i LEFT JOIN blob b ON b.sha256 = i.blob_sha256"
            " WHERE i.workload_id IN (SELECT value FROM json_each(?))",
            workload_ids,
        )
        outputs = self._grouped(
            "SELECT o.capture_id, o.name, NULL AS scalar, NULL AS random, b.sha256, b.present,"
            " b.hint FROM capture_output o JOIN blob b ON b.sha256 = o.blob_sha256"
            " WHERE o.capture_id IN (SELECT value FROM json_each(?)) ORDER BY o.ordinal",
            capture_ids,
        )
        for pair in chosen:
            made = () if pair.capture_id is None else outputs[pair.capture_id]
            yield self._subject(pair, workloads[pair.workload_id], inputs[pair.workload_id], made)

    def _grouped(self, query: str, ids: str) -> dict[int, list[sqlite3.Row]]:
        groups: dict[int, list[sqlite3.Row]] = defaultdict(list)
        for row in self.connection.execute(query, (ids,)):
            groups[row[0]].append(row)
        return groups

    def _subject(
        self,
        pair: Chosen,
        workload: sqlite3.Row,
        inputs: Sequence[sqlite3.Row],
        outputs: Sequence[sqlite3.Row],
    ) -> Subject:
        definition = self._definition(workload["definition_id"])
        decided = definition if isinstance(definition, Decided) else None
        return Subject(
            uuid=workload["uuid"],
            definition_name=workload["name"],
            definition=None if isinstance(definition, Decided) else definition,
            axes=json.loads(workload["axes"]),
            inputs={row["name"]: self._value(row) for row in inputs if row["random"] is None},
            outputs={row["name"]: self._stored(row) for row in outputs},
            decided=_decide(inputs, outputs) or decided,
            workload_id=pair.workload_id,
            definition_id=workload["definition_id"],
            capture_id=pair.capture_id,
        )

    def _value(self, row: sqlite3.Row) -> StoredTensor | int | float | bool:
        if row["scalar"] is None:
            return self._stored(row)
        scalar: int | float | bool = json.loads(row["scalar"])
        return scalar

    def _stored(self, row: sqlite3.Row) -> StoredTensor:
        return StoredTensor(str(self.blobs.path(row["sha256"])), TENSOR_KEY, row["sha256"])

    def _definition(self, definition_id: int) -> Definition | Decided:
        if definition_id not in self._definitions:
            name, body = self.connection.execute(
                "SELECT name, body FROM definition WHERE id = ?", (definition_id,)
            ).fetchone()
            try:
                found: Definition | Decided = Definition.from_foreign(json.loads(body), name)
            except DefinitionInvalid as error:
                found = Decided("error", str(error))
            self._definitions[definition_id] = found
        return self._definitions[definition_id]


def _decide(inputs: Sequence[sqlite3.Row], outputs: Sequence[sqlite3.Row]) -> Decided | None:
    if names := [row["name"] for row in inputs if row["random"] is not None]:
        return random_inputs(names)
    if not outputs:
        return NO_ENGINE_OUTPUT
    for row in (*inputs, *outputs):
        if row["present"] == 0:
            hint = f"; {row['hint']}" if row["hint"] else ""
            return Decided(
                "error",
                f"blob {row['sha256'][:12]}… of {row['name']} is not in this store{hint}",
                lacking=True,
            )
    return None
