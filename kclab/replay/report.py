"""`results/replay.json` of a root that was replayed in place: the report its importers look for."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kclab.core.tolerance import DEFAULTS, POLICIES
from kclab.db.verdicts import ReplayRow
from kclab.replay.subject import Subject

REPORT = Path("results") / "replay.json"


def write_report(
    root: Path, verdicts: Sequence[tuple[Subject, ReplayRow]], device: str, torch: str
) -> Path:
    """Write the report in one rename and return its path; raises OSError on a read-only root.

    Rows that were skipped have no case in it, broken ones count as failed.
    """
    cases = [_case(subject, row) for subject, row in verdicts if row.status != "skipped"]
    report = {
        "torch": torch,
        "device": device,
        "comparison": "all output elements",
        "tolerances": _tolerances(),
        "cases": cases,
    }
    path = root / REPORT
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(report, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _tolerances() -> dict[str, Any]:
    return {
        **{dtype: {"rtol": rtol, "atol": atol} for dtype, (rtol, atol) in DEFAULTS.items()},
        "integer": "exact",
        **{
            name: {
                "relative_rms": bounds.relative_rms,
                "relative_max": bounds.relative_max,
                "max_head_relative_rms": bounds.head_relative_rms,
            }
            for name, bounds in POLICIES.items()
        },
    }


def _case(subject: Subject, row: ReplayRow) -> dict[str, Any]:
    case: dict[str, Any] = {
        "definition": row.definition,
        "uuid": row.subject,
        "axes": dict(subject.axes),
        "max_absolute_errors": [_finite(output.max_abs) for output in row.outputs],
        "status": "passed" if row.status == "passed" else "failed",
        "seconds": row.seconds or 0.0,
    }
    for output in row.outputs:
        if output.policy in POLICIES and output.metrics:
            case["state_comparison"] = _state(output.metrics)
    if row.status != "passed":
        case["error"] = row.traceback or row.reason
    if row.warning:
        case["warning"] = row.warning
    return case


def _finite(value: float | None) -> float | None:
    return value if value is not None and value - value == 0 else None


def _state(metrics: Mapping[str, Any]) -> dict[str, Any]:
    names = {"head_relative_rms": "max_head_relative_rms"}
    return {names.get(name, name): value for name, value in metrics.items()}
