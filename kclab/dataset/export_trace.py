"""Writing a FlashInfer-Trace dataset that flashinfer-bench loads, and that comes back lossless.

Beside what the format knows (definitions, workloads, input blobs, solutions) lie files that its
tools do not scan: `captures.jsonl` with the receipts, the engine's outputs under `blob/expected/`,
and `kclab/` with all rows and the bytes that the format cannot hold. `kclab import` reads those.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kclab.blob.folder import BlobFolder
from kclab.core.definition import Definition
from kclab.core.digest import text_sha256
from kclab.core.errors import DatasetRefused, DefinitionInvalid
from kclab.dataset.export_blobs import BlobCopier
from kclab.dataset.paths import contained
from kclab.dataset.redaction import redacted_receipt
from kclab.dataset.trace_definition import TraceDefinition, trace_definition

ROWS = Path("kclab") / "kclab.db"


@dataclass(slots=True)
class TraceSummary:
    """What an export holds, and what the format kept out."""

    definitions: int = 0
    workloads: int = 0
    captures: int = 0
    solutions: int = 0
    blobs: int = 0
    nbytes: int = 0
    unproven: int = 0
    """Captures whose newest verdict is no pass: an import refuses those."""
    left_out: list[str] = field(default_factory=list)
    """By name, with the reason; their rows and bytes lie in `kclab/` all the same."""


@dataclass(slots=True)
class TraceWriter:
    """Writes one export from a copy of the rows; use it once."""

    root: Path
    rows: sqlite3.Connection
    copier: BlobCopier
    redacted: bool = False
    summary: TraceSummary = field(default_factory=TraceSummary)
    _names: set[str] = field(default_factory=set)
    _row_uuids: dict[int, str] = field(default_factory=dict)
    """Workload id to the uuid of its exported row."""
    _used: set[str] = field(default_factory=set)

    def write(self, with_solutions: bool) -> None:
        """Every definition with its workloads and receipts, then solutions and traces."""
        for definition_id, definition in self._definitions():
            exported = self._exported(definition)
            if exported is None:
                continue
            folder = Path(exported.body["op_type"])
            workloads = list(self._workload_rows(definition_id, definition, exported))
            self._write_json(Path("definitions") / folder / f"{exported.name}.json", exported.body)
            self.summary.definitions += 1
            if workloads:
                self._write_lines(Path("workloads") / folder / f"{exported.name}.jsonl", workloads)
            self._write_receipts(definition_id, definition, exported)
            if with_solutions:
                self._write_solution(exported)
        self._write_foreign()
        self._keep_the_rest()
        self.summary.blobs = len(self.copier.copied)
        self.summary.nbytes = self.copier.nbytes

    def _definitions(self) -> Iterator[tuple[int, Definition]]:
        """Each version that has workloads, the newest of a name first."""
        rows = self.rows.execute(
            "SELECT id, body FROM definition WHERE id IN (SELECT definition_id FROM workload)"
            " ORDER BY name, id DESC"
        )
        for definition_id, body in rows.fetchall():
            yield definition_id, Definition.from_foreign(json.loads(body))

    def _exported(self, definition: Definition) -> TraceDefinition | None:
        """The definition as exported; an older version of a name gets a suffix."""
        name = definition.name
        if name in self._names:
            name = f"{name}_v{definition.sha256[:8]}"
        try:
            exported = trace_definition(definition, name)
        except DefinitionInvalid as error:
            self.summary.left_out.append(f"definition {definition.name}: {error}")
            return None
        self._names.add(name)
        return exported

    def _workload_rows(
        self, definition_id: int, definition: Definition, exported: TraceDefinition
    ) -> Iterator[dict[str, Any]]:
        rows = self.rows.execute(
            "SELECT id, uuid, axes, extra FROM workload WHERE definition_id = ? ORDER BY id",
            (definition_id,),
        )
        for workload_id, uuid, axes_text, extra_text in rows.fetchall():
            axes = json.loads(axes_text)
            extra = json.loads(extra_text) if extra_text else {}
            reason = _empty_axis(axes) or self._absent_input(workload_id, exported)
            if reason is not None:
                self.summary.left_out.append(f"workload {uuid} of {definition.name}: {reason}")
                continue
            row_uuid = self._row_uuid(workload_id, uuid, extra)
            yield {
                **{k: v for k, v in extra.get("row", {}).items() if k != "workload"},
                "definition": exported.name,
                "solution": None,
                "workload": {
                    **extra.get("row", {}).get("workload", {}),
                    "uuid": row_uuid,
                    "axes": axes,
                    "inputs": self._inputs(workload_id, exported),
                },
                "evaluation": None,
            }
            self.summary.workloads += 1

    def _row_uuid(self, workload_id: int, uuid: str, extra: Mapping[str, Any]) -> str:
        """The uuid that the workload's own dataset gave it, since its traces name that one."""
        wanted = str(extra.get("uuid") or uuid)
        chosen = uuid if wanted in self._used else wanted
        self._used.add(chosen)
        self._row_uuids[workload_id] = chosen
        return chosen

    def _absent_input(self, workload_id: int, exported: TraceDefinition) -> str | None:
        rows = self.rows.execute(
            "SELECT i.name, b.hint FROM workload_input i JOIN blob b ON b.sha256 = i.blob_sha256"
            " WHERE i.workload_id = ? AND NOT b.present",
            (workload_id,),
        )
        for name, hint in rows:
            if name not in exported.dropped:
                return f"the bytes of {name} are not in the store ({hint})"
        return None

    def _inputs(self, workload_id: int, exported: TraceDefinition) -> dict[str, Any]:
        rows = self.rows.execute(
            "SELECT name, blob_sha256, scalar, random FROM workload_input WHERE workload_id = ?",
            (workload_id,),
        )
        values = {row[0]: row for row in rows}
        return {
            name: self._descriptor(values[name], exported)
            for name in exported.body["inputs"]
            if name in values
        }

    def _descriptor(self, value: Any, exported: TraceDefinition) -> dict[str, Any]:
        name, sha256, scalar, random = value
        if sha256 is not None:
            return self._tensor("workloads", name, sha256, exported)
        if scalar is not None:
            return {"type": "scalar", "value": json.loads(scalar)}
        return dict(json.loads(random))

    def _tensor(
        self, kind: str, name: str, sha256: str, exported: TraceDefinition
    ) -> dict[str, Any]:
        """Put a blob where the format wants it; its descriptor."""
        folder = Path("blob") / kind / exported.body["op_type"] / exported.name
        if name in exported.storage:
            digest = self.copier.copy_as(sha256, exported.storage[name], self.root / folder)
        else:
            digest = sha256
            self.copier.copy(sha256, self.root / folder / f"{sha256}.safetensors")
        path = (folder / f"{digest}.safetensors").as_posix()
        return {"type": "safetensors", "path": path, "tensor_key": "tensor"}

    def _write_receipts(
        self, definition_id: int, definition: Definition, exported: TraceDefinition
    ) -> None:
        """Append the receipts of exported workloads to `captures.jsonl`."""
        rows = self.rows.execute(
            "SELECT c.id, c.uuid, c.workload_id, c.captured_us, c.receipt, w.axes FROM capture c"
            " JOIN workload w ON w.id = c.workload_id WHERE w.definition_id = ? ORDER BY c.id",
            (definition_id,),
        )
        receipts = []
        for capture_id, uuid, workload_id, captured_us, text, axes in rows.fetchall():
            if workload_id not in self._row_uuids:
                continue
            receipt = json.loads(text)
            receipts.append(
                {
                    **(redacted_receipt(receipt) if self.redacted else receipt),
                    "definition": exported.name,
                    "uuid": self._row_uuids[workload_id],
                    "capture_uuid": uuid,
                    "axes": json.loads(axes),
                    "captured_us": captured_us,
                    "expected_output": self._expected(capture_id, definition, exported),
                }
            )
            self.summary.captures += 1
        if receipts:
            self._write_lines(Path("captures.jsonl"), receipts)

    def _expected(
        self, capture_id: int, definition: Definition, exported: TraceDefinition
    ) -> dict[str, Any] | None:
        rows = self.rows.execute(
            "SELECT o.name, o.blob_sha256, b.present FROM capture_output o JOIN blob b"
            " ON b.sha256 = o.blob_sha256 WHERE o.capture_id = ? ORDER BY o.ordinal",
            (capture_id,),
        ).fetchall()
        if not rows or not all(present for _, _, present in rows):
            return None
        return {name: self._tensor("expected", name, sha, exported) for name, sha, _ in rows}

    def _write_solution(self, exported: TraceDefinition) -> None:
        """The reference as a solution, so that `flashinfer-bench run` has something to run."""
        source = exported.body["reference"]
        name = f"kclab_reference_{exported.name}_{text_sha256(source)[:8]}"
        body = {
            "name": name,
            "definition": exported.name,
            "author": "baseline",
            "spec": {
                "language": "python",
                "target_hardware": ["cuda", "cpu"],
                "entry_point": "main.py::run",
                "dependencies": [],
                "destination_passing_style": False,
            },
            "sources": [{"path": "main.py", "content": source}],
            "description": "The definition's reference.",
        }
        folder = Path("solutions/baseline") / exported.body["op_type"] / exported.name
        self._write_json(folder / f"{name}.json", body)
        self.summary.solutions += 1

    def _write_foreign(self) -> None:
        """Solutions and traces that came with datasets, at their own paths."""
        rows = self.rows.execute(
            "SELECT kind, path, body, definition FROM foreign_record ORDER BY id"
        )
        for kind, path, body, definition in rows.fetchall():
            if definition not in self._names:
                self.summary.left_out.append(f"{kind} {path}: its definition is not exported")
                continue
            target = contained(self.root, path)
            if kind == "solution":
                self._write_json(target.relative_to(self.root.resolve()), json.loads(body))
            else:
                self._write_lines(target.relative_to(self.root.resolve()), [json.loads(body)])
            self.summary.solutions += kind == "solution"

    def _keep_the_rest(self) -> None:
        """Bytes that no exported file holds unchanged, so that an import finds every blob."""
        kept = BlobFolder(self.root / ROWS.parent / "blob")
        for (sha256,) in self.rows.execute("SELECT sha256 FROM blob WHERE present").fetchall():
            if sha256 not in self.copier.originals:
                self.copier.copy(sha256, kept.path(sha256))

    def _write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise DatasetRefused(f"two rows want to be exported as {path}.")
        target.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    def _write_lines(self, path: Path, rows: list[dict[str, Any]]) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _empty_axis(axes: Mapping[str, int]) -> str | None:
    empty = [name for name, size in axes.items() if size == 0]
    return f"axis {empty[0]} is 0, which the format's tools refuse" if empty else None
