"""Solutions and traces of a FlashInfer-Trace dataset: kept word for word, so an export has them.

kclab does not run solutions and does not judge traces; it files each under its path. Both trace
layouts are read (`traces/<op_type>/…` and `traces/<author>/<op_type>/…`): depth does not matter.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.errors import DatasetRefused
from kclab.dataset.cases import Refusal
from kclab.dataset.jsonl import read_jsonl
from kclab.dataset.paths import Containment
from kclab.db.values import to_json


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One solution file or one trace line."""

    kind: str
    """`solution` or `trace`."""
    path: str
    """Relative to the dataset, with `/`."""
    body: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Tells rows apart: the same line of the same file is one row however often it comes."""
        return text_sha256(canonical_json([self.path, self.body]))

    @property
    def workload_uuid(self) -> str | None:
        """The workload that a trace is about, as its dataset names it."""
        workload = self.body.get("workload")
        uuid = workload.get("uuid") if isinstance(workload, dict) else None
        return uuid if isinstance(uuid, str) else None


def read_foreign(root: Path, refused: list[Refusal], warnings: list[str]) -> list[ForeignRow]:
    """Every solution and trace below `root`; bad ones add to `refused`, named by file and line."""
    files = Containment(root)
    rows = []
    for path in _files(root, files, "solutions", "*.json", refused):
        try:
            body = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            refused.append(Refusal(str(path), f"not JSON ({error})"))
            continue
        if isinstance(body, dict):
            rows.append(ForeignRow("solution", path.relative_to(root).as_posix(), body))
        else:
            refused.append(Refusal(str(path), "a solution is a JSON object"))
    for path in _files(root, files, "traces", "*.jsonl", refused):
        lines = read_jsonl(path)
        refused.extend(Refusal(f"{path}:{bad.number}", bad.reason) for bad in lines.bad)
        if lines.torn is not None:
            warnings.append(f"{path}:{lines.torn.number}: the last line is torn; it was left out.")
        relative = path.relative_to(root).as_posix()
        rows.extend(ForeignRow("trace", relative, record.value) for record in lines.records)
    return rows


def _files(
    root: Path, files: Containment, folder: str, pattern: str, refused: list[Refusal]
) -> list[Path]:
    found = []
    for path in sorted((root / folder).rglob(pattern)):
        try:
            files.locate(path.relative_to(root).as_posix())
        except DatasetRefused as error:
            refused.append(Refusal(str(path), str(error), unsafe=True))
            continue
        if path.is_file():
            found.append(path)
    return found


def add_foreign(connection: sqlite3.Connection, run_id: int, rows: Iterable[ForeignRow]) -> int:
    """Insert the rows that are new; returns how many were."""
    before = connection.total_changes
    connection.executemany(
        "INSERT INTO foreign_record(kind, sha256, definition, workload_uuid, path, body, run_id)"
        " VALUES (?,?,?,?,?,?,?) ON CONFLICT(kind, sha256) DO NOTHING",
        [
            (
                row.kind,
                row.sha256,
                row.body.get("definition") if isinstance(row.body.get("definition"), str) else None,
                row.workload_uuid,
                row.path,
                to_json(row.body),
                run_id,
            )
            for row in rows
        ],
    )
    return connection.total_changes - before
