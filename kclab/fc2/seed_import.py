"""Reading result files of the script that the FC2 lab grew from, as rows.

Such a file has two arms: the accepted baseline and a candidate, in AB/BA rounds. Its ratios are
therefore against A; B0 stays NULL. The script knew NVFP4 on cuBLASLt only; a file that kclab
exported in its shape says its precision, accumulation, baseline and backend as well.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage, NothingMatched
from kclab.core.stats import Comparison, Sample, compare_arms, median
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.db.rows import add_error
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM
from kclab.fc2.boundary_insertion import imported_boundary
from kclab.fc2.config import AlgorithmConfig, config_from_json
from kclab.fc2.problem import GEMM, PRODUCER_GEMM, Precision, Problem
from kclab.fc2.rows import add_samples, config_id, finite, insert, validity_id
from kclab.fc2.validity import Validity

SCOPES = {"fc2_only": GEMM, "accepted_producer_plus_fc2": PRODUCER_GEMM}

COMFY, CUBLASLT = "comfy_kitchen.scaled_mm_nvfp4", "cublaslt"
"""The seed's baseline and backend, which its files leave unsaid."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import brought."""

    run_uuid: str
    results: int
    already: bool = False
    """The same file was imported before; nothing was added."""


def import_file(store: Store, path: Path) -> ImportReport:
    """Merge one result file; the same bytes a second time add nothing.

    Raises BadUsage for a file of another kind, and NothingMatched, with the run and its errors
    kept, where no candidate was measured.
    """
    data = _read(path)
    sha256 = hashlib.sha256(data).hexdigest()
    document = _parse(data, path)
    before = _imported_before(store, sha256)
    if before is not None:
        return ImportReport(before, 0, already=True)
    params = {"file": path.name, "sha256": sha256, "mode": document.get("mode")}
    with run(store, "fc2", params, mode="import", environment=_environment(document)) as active:
        count = _Import(active, document, str(path)).write()
        if not count:
            raise NothingMatched(f"{path}: no candidate was measured; the run is kept, empty.")
        active.finish_as("passed", f"{count} results from {path.name}")
        return ImportReport(active.uuid, count)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadUsage(f"{path} cannot be read: {error.strerror}.") from error


def _parse(data: bytes, path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise BadUsage(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(document, dict) or "fc2_boundary" not in document:
        raise BadUsage(f"{path}: not an FC2 result file (no fc2_boundary).")
    return document


def _imported_before(store: Store, sha256: str) -> str | None:
    from kclab.db.store import open_for_writing

    open_for_writing(store)
    connection = store.read()
    try:
        row = connection.execute(
            "SELECT uuid FROM run WHERE command = 'fc2' AND mode = 'import'"
            " AND status IN ('passed', 'empty') AND json_extract(params, '$.sha256') = ?",
            (sha256,),
        ).fetchone()
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _environment(document: Mapping[str, Any]) -> dict[str, Any]:
    """The file's machine, under the names that environments have here."""
    said = document.get("environment") or {}
    capability = said.get("device_capability") or []
    version = (said.get("extension") or {}).get("cublaslt_version")
    facts = {
        "os": said.get("platform", "unknown"),
        "python": str(said.get("python", "unknown")).split()[0],
        "torch": said.get("torch"),
        "gpu": said.get("device"),
        "capability": ".".join(str(part) for part in capability) or None,
        "driver": said.get("driver"),
        "cuda": said.get("torch_cuda"),
        "cublaslt": None if version is None else str(version),
        "comfy_kitchen": said.get("comfy_kitchen"),
    }
    return {key: value for key, value in facts.items() if value is not None}


class _Import:
    def __init__(self, active: ActiveRun, document: Mapping[str, Any], where: str):
        self._active = active
        self._document = document
        self._where = where
        facts = _environment(document)
        names = ("gpu", "capability", "driver", "cublaslt", "torch")
        backend = str(document.get("backend", CUBLASLT))
        self._validity = Validity(backend, {k: facts[k] for k in names if k in facts})

    def write(self) -> int:
        """Write everything in one transaction; how many results."""
        with writing(self._active.connection) as tx:
            boundary = self._boundary(tx)
            validity = validity_id(tx, self._validity)
            self._heuristics(tx, boundary)
            self._errors(tx)
            return sum(
                self._candidate(tx, boundary, validity, row, number)
                for number, row in enumerate(self._candidates())
            )

    def _boundary(self, tx: sqlite3.Connection) -> int:
        said = self._document["fc2_boundary"]
        m, n, k = said["logical_mnk"]
        identity = {
            "workload": self._document.get("workload"),
            "block": said.get("block"),
            "shape": [m, n, k],
        }
        problem = Problem(_precision(said), int(m), int(n), int(k), _fast(said))
        return imported_boundary(tx, problem, identity, said.get("block"))

    def _candidates(self) -> Iterator[Mapping[str, Any]]:
        yield from self._document.get("candidates") or ()
        if probe := self._document.get("candidate_probe"):
            yield probe

    def _heuristics(self, tx: sqlite3.Connection, boundary: int) -> None:
        for group in self._document.get("heuristics") or ():
            tx.execute(
                "INSERT INTO fc2_enumeration(run_id, boundary_id, budget, requested, returned)"
                " VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING",
                (
                    self._active.id,
                    boundary,
                    group["max_workspace_bytes"],
                    group["requested_count"],
                    group["returned_count"],
                ),
            )

    def _errors(self, tx: sqlite3.Connection) -> None:
        for entry in self._document.get("errors_and_unsupported") or ():
            message = entry.get("error") or entry.get("reason") or "unsupported"
            operation = entry.get("operation") or entry.get("feature") or "check"
            add_error(tx, self._active.id, operation, "imported", str(message), context=entry)

    def _candidate(
        self,
        tx: sqlite3.Connection,
        boundary: int,
        validity: int,
        row: Mapping[str, Any],
        number: int,
    ) -> int:
        count = 0
        for name, scope in SCOPES.items():
            if name in row:
                try:
                    self._result(tx, boundary, validity, row, name, scope)
                except (KeyError, TypeError, ValueError) as error:
                    raise BadUsage(
                        f"{self._where}: candidate {number}, {name}: {error!r} is missing or wrong."
                    ) from error
                count += 1
        return count

    def _result(
        self,
        tx: sqlite3.Connection,
        boundary: int,
        validity: int,
        row: Mapping[str, Any],
        name: str,
        scope: str,
    ) -> None:
        pair = row[name]
        config = config_from_json(row["selected_config"])
        samples = pair_samples(pair)
        found = compare_arms(samples, BASELINE_ARM, CANDIDATE_ARM)
        parity = pair["parity"]
        values = {
            "run_id": self._active.id,
            "boundary_id": boundary,
            "config_id": config_id(tx, config),
            "validity_id": validity,
            "measurement_id": self._measurement(tx, config, scope, samples, found),
            "scope": scope,
            "stage": "import",
            "baseline": self._document.get("baseline", COMFY),
            # Unknown is not zero: it stays NULL, and such a row is never the best.
            "required_workspace": row.get("required_workspace_bytes"),
            "supplied_workspace": row.get("supplied_workspace_bytes") or 0,
            "a_ms": _median(samples, BASELINE_ARM),
            "b_ms": _median(samples, CANDIDATE_ARM),
            **_compared(found),
            "baseline_ratio": found.ratio.estimate,
            "floor": finite(found.floor),
            "drift": found.drift,
            "exact": int(parity["bf16_exact"]),
            "different": parity["different_elements"],
            "output_sha256": row.get("output_sha256"),
            "is_control": 0,
            "imported": 1,
            "measured_us": now_us(),
        }
        self._parity(tx, insert(tx, "fc2_result", values), parity)

    def _measurement(
        self,
        tx: sqlite3.Connection,
        config: AlgorithmConfig,
        scope: str,
        samples: list[Sample],
        found: Comparison,
    ) -> int:
        values = {
            "run_id": self._active.id,
            "name": f"fc2 {scope} {config.text}",
            "baseline_ms": _median(samples, BASELINE_ARM),
            "candidate_ms": _median(samples, CANDIDATE_ARM),
            **_compared(found),
            "detail": json.dumps({"drift": found.drift, "imported": True}),
        }
        measurement = insert(tx, "measurement", values)
        add_samples(tx, measurement, samples)
        return measurement

    def _parity(self, tx: sqlite3.Connection, result: int, parity: Mapping[str, Any]) -> None:
        boundary = self._document["fc2_boundary"]
        m, n, _ = boundary["logical_mnk"]
        values = {
            "result_id": result,
            "subject": "B:A",
            "exact": int(parity["bf16_exact"]),
            "elements": m * n,
            "different": parity["different_elements"],
            "max_abs": parity.get("max_abs"),
            "mean_abs": parity.get("mean_abs"),
            "actual_sha256": parity["actual_sha256"],
            "expected_sha256": parity["expected_sha256"],
        }
        insert(tx, "fc2_parity", values)


def _precision(boundary: Mapping[str, Any]) -> Precision:
    said = boundary.get("precision", Precision.NVFP4)
    if said not in list(Precision):
        known = ", ".join(Precision)
        raise BadUsage(f"fc2_boundary: precision {said!r} is none of {known}.")
    return Precision(said)


def _fast(boundary: Mapping[str, Any]) -> bool:
    return bool(boundary.get("fast_accumulation", False))


def pair_samples(pair: Mapping[str, Any]) -> list[Sample]:
    """Both arms' samples of an AB/BA pair; even rounds ran the baseline first."""
    samples = []
    arms = zip(pair["baseline"]["samples_ms"], pair["candidate"]["samples_ms"], strict=True)
    for number, (baseline, candidate) in enumerate(arms):
        first = number % 2 == 0
        samples.append(Sample(number, 0 if first else 1, BASELINE_ARM, float(baseline)))
        samples.append(Sample(number, 1 if first else 0, CANDIDATE_ARM, float(candidate)))
    return samples


def _compared(found: Comparison) -> dict[str, Any]:
    """What a result and its measurement both say of the two arms."""
    return {
        "ratio": found.ratio.estimate,
        "ratio_low": finite(found.ratio.low),
        "ratio_high": finite(found.ratio.high),
        "pairs": found.pairs,
        "verdict": str(found.verdict),
    }


def _median(samples: list[Sample], arm: str) -> float:
    return median([sample.ms for sample in samples if sample.arm == arm])
