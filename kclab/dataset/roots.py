"""Reading a dataset folder: capture roots, merged datasets, FlashInfer-Trace datasets.

The three share `definitions/`, `workloads/**/*.jsonl` and blobs; they differ in where receipts
are. Reading checks every row and every path, and opens no blob. Replay in place and import both
start here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kclab.core.catalog import Catalog, load_catalog
from kclab.core.errors import BadUsage, DatasetRefused
from kclab.dataset.cases import Case, Orphan, Refusal, Root, RootKind
from kclab.dataset.definition_files import load_definitions
from kclab.dataset.jsonl import JsonLines, Record, read_jsonl
from kclab.dataset.paths import PICKLE_SUFFIXES
from kclab.dataset.rows_of_root import RowRefused, TensorFiles, identify, read_case, read_outputs

REPORT = "results/replay.json"
ARCHIVE_SUFFIXES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z")


def read_root(path: Path, definitions: Path | None = None) -> Root:
    """Everything that the dataset at `path` says, row by row.

    Definitions come from `definitions`, `path/definitions` and `path/../definitions`, in that
    order, then from those that kclab ships. Raises BadUsage for a path that is no dataset folder,
    DatasetRefused for a pickle; single rows that cannot be used become `refusals`.
    """
    return _Reader(path, definitions).read()


def root_kind(path: Path) -> RootKind:
    """What the folder is; raises BadUsage or DatasetRefused when it is no dataset."""
    if not path.is_dir():
        raise _no_folder(path)
    if (path / "captures.jsonl").is_file():
        return RootKind.MERGED
    if (path / "results" / "captures.jsonl").is_file():
        return RootKind.CAPTURE
    if (path / "workloads").is_dir():
        return RootKind.TRACE
    raise BadUsage(
        f"{path}: no dataset; expected workloads/, captures.jsonl or results/captures.jsonl in it."
    )


def _no_folder(path: Path) -> Exception:
    if not path.exists():
        return BadUsage(f"{path}: no such file or folder.")
    if path.name.lower().endswith(PICKLE_SUFFIXES):
        return DatasetRefused(f"{path}: a pickle runs code when it is loaded; kclab reads none.")
    if path.name.lower().endswith(ARCHIVE_SUFFIXES):
        return BadUsage(f"{path}: archives are not read; unpack it and name the folder.")
    return BadUsage(f"{path}: a file, not a dataset folder.")


class _Reader:
    def __init__(self, path: Path, definitions: Path | None) -> None:
        kind = root_kind(path)
        self.root = Root(path, kind)
        self.root.definitions = load_definitions(path, definitions, self.root.warnings)
        self.files = TensorFiles(path)
        self._shipped: Catalog | None = None
        self.torn: dict[str, int] = {}
        """Definition name to torn workload lines: each explains one receipt without a row."""

    def read(self) -> Root:
        receipts = self._receipts()
        self.root.report = self._report()
        verdicts = _verdicts(self.root.report)
        for row, where in self._workload_rows():
            self._add_cases(row, where, receipts, verdicts)
        for group in receipts.values():
            self._add_orphans(group)
        return self.root

    def _receipts(self) -> dict[str, list[tuple[dict[str, Any], str]]]:
        """Receipts by workload uuid, in file order; several only where they name captures."""
        names = {RootKind.MERGED: "captures.jsonl", RootKind.CAPTURE: "results/captures.jsonl"}
        name = names.get(self.root.kind)
        if name is None:
            return {}
        path = self._file(self.root.path / name)
        if path is None:
            return {}
        self.root.receipts_mtime_us = path.stat().st_mtime_ns // 1000
        receipts: dict[str, list[tuple[dict[str, Any], str]]] = {}
        seen: dict[str, dict[str, Any]] = {}
        for record in self._lines(path).records:
            where = f"{path}:{record.number}"
            uuid = record.value.get("uuid")
            if not isinstance(uuid, str) or not uuid:
                self._refuse(where, "the receipt has no uuid", record.value)
            elif self._is_new(seen, str(record.value.get("capture_uuid", uuid)), record, where):
                receipts.setdefault(uuid, []).append((record.value, where))
        return receipts

    def _workload_rows(self) -> Iterator[tuple[dict[str, Any], str]]:
        seen: dict[str, dict[str, Any]] = {}
        folder = self.root.path / "workloads"
        for found in sorted(folder.rglob("*.jsonl")):
            path = self._file(found)
            if path is None:
                continue
            lines = self._lines(path)
            if lines.torn is not None:
                self.torn[path.stem] = self.torn.get(path.stem, 0) + 1
            for record in lines.records:
                where = f"{path}:{record.number}"
                _, uuid = identify(record.value)
                if uuid is None or self._is_new(seen, uuid, record, where):
                    yield record.value, where

    def _add_cases(
        self,
        row: dict[str, Any],
        where: str,
        receipts: dict[str, list[tuple[dict[str, Any], str]]],
        verdicts: dict[str, dict[str, Any]],
    ) -> None:
        name, uuid = identify(row)
        mine = receipts.pop(uuid or "", [])
        if name is not None and name not in self.root.definitions:
            self._borrow(name)
        try:
            case = read_case(row, where, self.root.definitions, self.files)
        except RowRefused as error:
            self._refuse(where, str(error), row, unsafe=error.unsafe)
            return
        if not mine:
            self.root.cases.append(case)
        for number, (receipt, receipt_where) in enumerate(mine):
            one = replace(case, outputs=None) if number else case
            self._add_receipt(one, receipt, receipt_where, verdicts)

    def _borrow(self, name: str) -> None:
        """Take a definition that the root lacks from those that kclab ships."""
        if self._shipped is None:
            self._shipped = load_catalog()
        found = self._shipped.get(name)
        if found is not None:
            self.root.definitions[name] = found

    def _add_receipt(
        self,
        case: Case,
        receipt: dict[str, Any],
        where: str,
        verdicts: dict[str, dict[str, Any]],
    ) -> None:
        if receipt.get("expected_output") is not None:
            definition = self.root.definitions[case.definition]
            try:
                case.outputs = read_outputs(receipt["expected_output"], definition, self.files)
            except RowRefused as error:
                self._refuse(where, str(error), receipt, unsafe=error.unsafe)
                return
        case.receipt, case.receipt_where = receipt, where
        case.verdict = verdicts.get(case.capture_uuid) or _own_validation(receipt)
        self.root.cases.append(case)

    def _add_orphans(self, group: list[tuple[dict[str, Any], str]]) -> None:
        for receipt, where in group:
            name = str(receipt.get("definition"))
            torn = self.torn.get(name, 0) > 0
            if torn:
                self.torn[name] -= 1
            self.root.orphans.append(Orphan(where, str(receipt["uuid"]), name, torn))

    def _report(self) -> dict[str, Any] | None:
        path = self.root.path / REPORT
        if not path.is_file() or self._file(path) is None:
            return None
        try:
            report = json.loads(path.read_bytes())
            valid = isinstance(report["cases"], list) and all(
                isinstance(case, dict) and isinstance(case["uuid"], str) for case in report["cases"]
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._refuse(str(path), f"not a replay report ({error})")
            return None
        if not valid:
            self._refuse(str(path), "not a replay report: a case lacks its uuid")
            return None
        return dict(report)

    def _file(self, path: Path) -> Path | None:
        """`path` when it stays inside the root, else None and a refusal."""
        try:
            self.files.containment.locate(path.relative_to(self.root.path).as_posix())
        except DatasetRefused as error:
            self._refuse(str(path), str(error), unsafe=True)
            return None
        return path if path.is_file() else None

    def _lines(self, path: Path) -> JsonLines:
        lines = read_jsonl(path)
        for bad in lines.bad:
            self._refuse(f"{path}:{bad.number}", bad.reason)
        if lines.torn is not None:
            self.root.warnings.append(
                f"{path}:{lines.torn.number}: the last line is torn; it was left out."
            )
        return lines

    def _is_new(
        self, seen: dict[str, dict[str, Any]], uuid: str, record: Record, where: str
    ) -> bool:
        """Whether a uuid comes for the first time; a repetition is skipped or a conflict."""
        first = seen.setdefault(uuid, record.value)
        if first is record.value:
            return True
        if first == record.value:
            self.root.warnings.append(f"{where}: {uuid} again, with the same content; skipped.")
        else:
            self._refuse(where, f"{uuid} again, with different content", record.value)
        return False

    def _refuse(
        self, where: str, reason: str, row: dict[str, Any] | None = None, *, unsafe: bool = False
    ) -> None:
        name, uuid = identify(row or {})
        self.root.refusals.append(Refusal(where, reason, name, uuid, unsafe))


def _verdicts(report: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The report's cases by uuid, each with the report-wide facts that it lacks."""
    if report is None:
        return {}
    shared: dict[str, Any] = {
        key: report[key] for key in ("device", "torch", "tolerances") if key in report
    }
    return {case["uuid"]: {**shared, **case} for case in report["cases"]}


def _own_validation(receipt: dict[str, Any]) -> dict[str, Any] | None:
    """The verdict that a merged dataset keeps inside each receipt."""
    validation = receipt.get("validation")
    return validation if isinstance(validation, dict) else None
