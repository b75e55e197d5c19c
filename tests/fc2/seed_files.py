"""Result files in the seed script's shape, with made-up times."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20
BASE = (2.00, 2.01, 1.99, 2.00, 2.02, 2.00)

ENVIRONMENT = {
    "platform": "Linux",
    "torch": "2.13.0",
    "device": "NVIDIA H200",
    "device_capability": [9, 0],
    "driver": "595.91.07",
    "extension": {"cublaslt_version": 130600},
}


def scaled(factor: float) -> list[float]:
    """The baseline's times by a factor."""
    return [round(value * factor, 4) for value in BASE]


def config(number: int) -> dict[str, int]:
    """A config whose tile is 600 + number."""
    return {
        "algorithm_id": 66,
        "tile_id": 600 + number,
        "stages_id": 36,
        "split_k": 1,
        "reduction_scheme": 0,
        "custom_option": 0,
        "cta_swizzle": 0,
        "inner_shape": 0,
        "cluster_shape": 2,
    }


def arm(times: Sequence[float]) -> dict[str, Any]:
    """One arm's record."""
    ordered = sorted(times)
    return {
        "samples_ms": list(times),
        "p50_ms": statistics.median(ordered),
        "p95_ms": ordered[-1],
        "mean_ms": statistics.fmean(times),
    }


def candidate(
    number: int,
    times: Sequence[float],
    *,
    required: int | None = 0,
    exact: bool = True,
    base: Sequence[float] = BASE,
) -> dict[str, Any]:
    """A measured candidate; `required` None leaves the key out, as some files do."""
    parity = {
        "bf16_exact": exact,
        "different_elements": 0 if exact else 7,
        "max_abs": 0.0 if exact else 0.125,
        "mean_abs": 0.0,
        "actual_sha256": "e" * 64,
        "expected_sha256": "e" * 64 if exact else "f" * 64,
    }
    pair = {"baseline": arm(base), "candidate": arm(times), "parity": parity}
    row = {
        "selected_config": config(number),
        "supplied_workspace_bytes": 64 * MIB,
        "required_workspace_bytes": required,
        "fc2_only": pair,
        "accepted_producer_plus_fc2": pair,
        "output_sha256": "e" * 64,
    }
    if required is None:
        del row["required_workspace_bytes"]
    return row


def write(path: Path, candidates: Sequence[dict[str, Any]], **more: Any) -> Path:
    """A sweep's file over the canonical boundary."""
    document = {
        "mode": "sweep",
        "environment": ENVIRONMENT,
        "workload": {"tokens": 37_810, "resolution": [1344, 768], "frames": 124},
        "fc2_boundary": {
            "block": 24,
            "logical_mnk": [37_810, 5_376, 14_336],
            "descriptor_mnk_after_padding": [37_824, 5_376, 14_336],
        },
        "candidates": list(candidates),
        "errors_and_unsupported": [],
        **more,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
