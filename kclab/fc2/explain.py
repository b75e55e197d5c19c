"""A config in words: what its numbers say, what it launched, and how far from the roofline."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

from kclab.core.errors import NothingMatched
from kclab.core.units import format_bytes
from kclab.db.queries.fc2 import config_history
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gpu import told_conditions
from kclab.fc2.problem import GEMM

REDUCTIONS = {
    0: "none: K is summed in one pass",
    1: "in place",
    2: "slices summed in fp32",
    4: "slices summed in bf16: expect other bytes",
}

PEAK_TFLOPS = {
    ("H200", "bf16"): 989.0,
    ("H200", "fp8_e4m3"): 1979.0,
    ("H100", "bf16"): 989.0,
    ("H100", "fp8_e4m3"): 1979.0,
    ("B200", "bf16"): 2250.0,
    ("B200", "fp8_e4m3"): 4500.0,
    ("B200", "nvfp4"): 9000.0,
}
"""Dense tensor-core peaks in NVIDIA's data sheets, SXM boards, TFLOP/s."""

TILE = re.compile(r"_(\d+x\d+)(?:x(\d+))?_")

STAGES = re.compile(r"_\d+x\d+_(\d+)x(\d+)_")
"""After the tile, nvjet's names say elements of K a stage, and stages."""


def explain_config(connection: sqlite3.Connection, config: AlgorithmConfig) -> dict[str, Any]:
    """Fields of a page about one config. Raises NothingMatched where it was never seen."""
    measured = config_history(connection, config.key)
    shown = next((row for row in measured if row["scope"] == GEMM), None)
    seen = _candidate(connection, config, None if shown is None else shown["result_id"])
    if seen is None and not measured:
        raise NothingMatched(f"config {config.text} was never seen here.")
    fields: dict[str, Any] = {
        "config": config.text,
        "algorithm id": config.algorithm_id,
        "tile id": config.tile_id,
        "stages id": config.stages_id,
        "cluster id": config.cluster_shape,
        "split-K": config.split_k,
        "reduction": REDUCTIONS.get(config.reduction_scheme, str(config.reduction_scheme)),
        "swizzle": config.cta_swizzle,
        "custom option": config.custom_option,
    }
    if seen is not None:
        fields |= _launched(seen)
    if shown is not None:
        fields |= _measured(shown, len(measured))
        fields["while measured"] = _conditions(connection, shown["result_id"])
    return fields


def _conditions(connection: sqlite3.Connection, result_id: int) -> str | None:
    """Clocks, temperatures and throttle reasons of a result's rounds."""
    row = connection.execute(
        "SELECT m.detail FROM fc2_result r JOIN measurement m ON m.id = r.measurement_id"
        " WHERE r.id = ?",
        (result_id,),
    ).fetchone()
    detail = json.loads(row["detail"]) if row and row["detail"] else {}
    return told_conditions(detail.get("conditions") or {})


def _candidate(
    connection: sqlite3.Connection, config: AlgorithmConfig, result_id: int | None
) -> sqlite3.Row | None:
    """The config as a search of the result's boundary met it; one that says what it launched."""
    where = " AND ".join(f"c.{name} = ?" for name in config.to_json())
    row: sqlite3.Row | None = connection.execute(
        "SELECT f.required_workspace, f.waves, f.status, f.reason, l.kernel, l.grid, l.cluster,"
        " l.shared_bytes, l.stream_k FROM fc2_candidate f JOIN algo_config c ON c.id = f.config_id"
        f" LEFT JOIN fc2_launch l ON l.id = f.launch_id WHERE {where}"
        " ORDER BY f.boundary_id = (SELECT boundary_id FROM fc2_result WHERE id = ?) DESC,"
        " l.id IS NULL, f.id DESC LIMIT 1",
        (*config.key, result_id),
    ).fetchone()
    return row


def _launched(seen: sqlite3.Row) -> dict[str, Any]:
    workspace = seen["required_workspace"]
    tile, stages = (pattern.search(seen["kernel"] or "") for pattern in (TILE, STAGES))
    return {
        "workspace": None if workspace is None else format_bytes(workspace),
        "waves": None if seen["waves"] is None else round(seen["waves"], 2),
        "kernel": seen["kernel"],
        "tile by name": tile.group(1) if tile else None,
        "stages by name": f"{stages.group(2)}, each {stages.group(1)} of K" if stages else None,
        "grid": seen["grid"],
        "cluster": seen["cluster"],
        "shared memory": None
        if seen["shared_bytes"] is None
        else format_bytes(seen["shared_bytes"]),
        "Stream-K": _stream_k(seen),
        "status": seen["status"] if not seen["reason"] else f"{seen['status']}: {seen['reason']}",
    }


def _stream_k(seen: sqlite3.Row) -> str | None:
    if seen["kernel"] is None:
        return None
    return "yes, by its kernel's name" if seen["stream_k"] else "no, by its kernel's name"


def _measured(row: dict[str, Any], times: int) -> dict[str, Any]:
    flops = 2 * row["m"] * row["n"] * row["k"]
    rate = None if not row["b_ms"] else flops / (row["b_ms"] * 1e9)
    peak = next(
        (peak for (gpu, dtype), peak in PEAK_TFLOPS.items()
         if gpu in (row["gpu"] or "") and dtype == row["precision"]),
        None,
    )  # fmt: skip
    numerics = row["precision"] + ("+fast" if row["fast_accumulation"] else "")
    share = f"{rate / peak:.0%} of {peak:g} TFLOP/s" if rate and peak else None
    return {
        "measured": f"{times} times, last on {row['m']}x{row['n']}x{row['k']} {numerics}",
        "TFLOP/s": None if rate is None else round(rate, 1),
        "roofline": share,
        "verdict": f"{row['verdict']}, {(row['ratio'] - 1) * 100:+.1f} % against rank 0",
        "bytes": "the baseline's" if row["exact"] else f"{row['different']} elements differ",
    }
