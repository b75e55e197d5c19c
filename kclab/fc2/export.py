"""Results for other programs: the seed script's JSON shape, and a C snippet."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kclab.core.stats import quantile
from kclab.db.queries.fc2 import run_candidates, run_results
from kclab.db.queries.fc2_runs import run_that_tried
from kclab.db.queries.runs import find_run
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM, CONTROL_ARM
from kclab.fc2.config import AlgorithmConfig, parse_config
from kclab.fc2.problem import GEMM, PRODUCER_GEMM

SCOPES = {GEMM: "fc2_only", PRODUCER_GEMM: "accepted_producer_plus_fc2"}

PROBES = ("characterize", "selected")
"""Modes that measure one config: the seed calls it `candidate_probe`."""

STREAM_K = {
    "feature": "Stream-K",
    "supported_public_control": False,
    "reason": "no cublasLt attribute selects it; a launched kernel's name says whether it is one",
}


def seed_document(connection: sqlite3.Connection, run: str) -> dict[str, Any]:
    """A run in the seed's shape, from its rows alone; by default the newest that tried configs.

    Precision, accumulation, baseline and backend are said beside the seed's own names: the seed
    knew NVFP4 on cuBLASLt only. Raises NothingMatched for a run that tried no config.
    """
    run = run_that_tried(connection, run, measured=True)
    row = find_run(connection, run)
    results = run_results(connection, run)
    boundary = connection.execute(
        "SELECT b.* FROM fc2_boundary b WHERE b.id IN"
        " (SELECT boundary_id FROM fc2_result WHERE run_id = :r"
        "  UNION SELECT boundary_id FROM fc2_candidate WHERE run_id = :r) LIMIT 1",
        {"r": row["id"]},
    ).fetchone()
    configs = dict.fromkeys(r["config"] for r in results if not r["is_control"])
    document: dict[str, Any] = {
        "mode": row["mode"],
        "environment": _environment(connection, row),
        "workload": {"tokens": boundary["m"], "recipe": json.loads(boundary["recipe"] or "{}")},
        "fc2_boundary": {
            "block": boundary["block"],
            "logical_mnk": [boundary["m"], boundary["n"], boundary["k"]],
            "descriptor_mnk_after_padding": [boundary["m_padded"], boundary["n"], boundary["k"]],
            "no_bias": True,
            "precision": boundary["precision"],
            "fast_accumulation": bool(boundary["fast_accumulation"]),
        },
        **_measured_with(connection, int(row["id"])),
        "baseline_kernel_metadata": json.loads(row["volatile"] or "{}").get("baseline"),
        "heuristics": _heuristics(connection, int(row["id"]), run),
        "explicit_split_k_checks": _explicit(connection, run),
        "candidates": [_candidate(connection, results, config) for config in configs],
        "errors_and_unsupported": [*_errors(connection, int(row["id"]), run), STREAM_K],
    }
    document |= _gates(connection, int(row["id"]))
    if document["candidates"]:
        document["selected"] = document["candidates"][0]["selected_config"]
        if row["mode"] in PROBES:
            document["candidate_probe"] = document["candidates"][0]
    return document


def _measured_with(connection: sqlite3.Connection, run_id: int) -> dict[str, Any]:
    """`baseline`, what arm A called, and `backend`; nothing where nothing was measured."""
    row = connection.execute(
        "SELECT r.baseline, v.backend FROM fc2_result r JOIN fc2_validity v ON v.id = r.validity_id"
        " WHERE r.run_id = ? LIMIT 1",
        (run_id,),
    ).fetchone()
    return {} if row is None else dict(row)


def _environment(connection: sqlite3.Connection, run: sqlite3.Row) -> dict[str, Any]:
    row = connection.execute(
        "SELECT facts FROM environment WHERE id = ?", (run["environment_id"],)
    ).fetchone()
    facts = json.loads(row[0])
    capability = str(facts.get("capability") or "")
    version = facts.get("cublaslt")
    return {
        "platform": facts.get("os"),
        "python": facts.get("python"),
        "torch": facts.get("torch"),
        "torch_cuda": facts.get("cuda"),
        "device": facts.get("gpu"),
        "device_capability": [int(p) for p in capability.split(".") if p.isdigit()],
        "driver": facts.get("driver"),
        "git_commit": run["git_commit"],
        "environment_switches": json.loads(run["volatile"] or "{}").get("switches", {}),
        "extension": {"cublaslt_version": None if version is None else int(version)},
        "comfy_kitchen": facts.get("comfy_kitchen"),
    }


def _heuristics(connection: sqlite3.Connection, run_id: int, run: str) -> list[dict[str, Any]]:
    tried = run_candidates(connection, run)
    groups = connection.execute(
        "SELECT budget, requested, returned FROM fc2_enumeration WHERE run_id = ? ORDER BY budget",
        (run_id,),
    )
    return [
        {
            "max_workspace_bytes": group["budget"],
            "requested_count": group["requested"],
            "returned_count": group["returned"],
            "algorithms": [
                parse_config(c["config"]).to_json()
                | {"required_workspace_bytes": c["required_workspace"], "valid": True}
                for c in tried
                if c["origin"] == "heuristic" and c["budget"] == group["budget"]
            ],
        }
        for group in groups
    ]


def _gates(connection: sqlite3.Connection, run_id: int) -> dict[str, Any]:
    """`block_gate`, a row a block, or `trajectory`: what a gate's rows hold."""
    rows = connection.execute(
        "SELECT kind, detail FROM fc2_gate WHERE run_id = ? AND kind <> 'process' ORDER BY id",
        (run_id,),
    ).fetchall()
    details = [(row["kind"], _seeds_words(json.loads(row["detail"]))) for row in rows]
    blocks = [detail for kind, detail in details if kind == "block"]
    whole = [detail for kind, detail in details if kind == "trajectory"]
    found: dict[str, Any] = {"block_gate": blocks} if blocks else {}
    return found | ({"trajectory": whole[0]} if whole else {})


def _seeds_words(detail: Mapping[str, Any]) -> dict[str, Any]:
    """A gate's detail with its parities as the seed calls them."""
    names = {"video": "video_parity", "audio": "audio_parity"}
    return {
        names.get(name, name): _parity(value)
        if isinstance(value, dict) and "actual_sha256" in value
        else value
        for name, value in detail.items()
    }


def _parity(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bf16_exact": bool(row["exact"]),
        "different_elements": row["different"],
        **{name: row[name] for name in ("max_abs", "mean_abs", "actual_sha256", "expected_sha256")},
    }


def _explicit(connection: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    return [
        {
            "requested_config": parse_config(c["config"]).to_json(),
            "valid": c["status"] == "valid",
            "required_workspace_bytes": c["required_workspace"],
            "error": c["reason"],
        }
        for c in run_candidates(connection, run)
        if c["origin"] == "explicit"
    ]


def _candidate(
    connection: sqlite3.Connection, results: Sequence[Mapping[str, Any]], config: str
) -> dict[str, Any]:
    own = [r for r in results if r["config"] == config]
    first = own[0]
    full = connection.execute(
        "SELECT supplied_workspace, output_sha256 FROM fc2_result WHERE id = ?",
        (first["result_id"],),
    ).fetchone()
    row: dict[str, Any] = {
        "selected_config": parse_config(config).to_json(),
        "supplied_workspace_bytes": full["supplied_workspace"],
        "required_workspace_bytes": first["required_workspace"],
        "checked": {"valid": True, "required_workspace_bytes": first["required_workspace"]},
        "output_sha256": full["output_sha256"],
    }
    row |= {SCOPES[r["scope"]]: _pair(connection, r) for r in own}
    return row


def _pair(connection: sqlite3.Connection, result: Mapping[str, Any]) -> dict[str, Any]:
    samples = connection.execute(
        "SELECT s.arm, s.ms FROM timing_sample s JOIN fc2_result r"
        " ON r.measurement_id = s.measurement_id WHERE r.id = ? ORDER BY s.round, s.position",
        (result["result_id"],),
    ).fetchall()
    arms = {
        name: [float(ms) for arm, ms in samples if arm == letter]
        for name, letter in (("baseline", BASELINE_ARM), ("candidate", CANDIDATE_ARM))
    }
    control = [float(ms) for arm, ms in samples if arm == CONTROL_ARM]
    parity = connection.execute(
        "SELECT * FROM fc2_parity WHERE result_id = ? AND subject = 'B:A'", (result["result_id"],)
    ).fetchone()
    pair: dict[str, Any] = {name: _summary(ms, result) for name, ms in arms.items()}
    if control:
        pair["heuristic_rank_0"] = _summary(control, result)
    pair["order"] = "shuffled rounds, each mirrored"
    pair["parity"] = _parity(dict(parity))
    return pair


def _summary(times: Sequence[float], result: Mapping[str, Any]) -> dict[str, Any]:
    middle = quantile(times, 0.5)
    flops = 2.0 * result["m"] * result["n"] * result["k"]
    return {
        "samples_ms": list(times),
        "p50_ms": middle,
        "p95_ms": quantile(times, 0.95),
        "mean_ms": statistics.fmean(times),
        "dense_tflop_s_p50": flops / (middle * 1e9),
    }


def _errors(connection: sqlite3.Connection, run_id: int, run: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT operation, message FROM error WHERE run_id = ? ORDER BY id", (run_id,)
    )
    errors = [{"operation": row["operation"], "error": row["message"]} for row in rows]
    refused = connection.execute(
        "SELECT budget, error FROM fc2_enumeration WHERE run_id = ? AND error IS NOT NULL",
        (run_id,),
    )
    errors += [
        {"operation": "heuristic", "max_workspace_bytes": row["budget"], "error": row["error"]}
        for row in refused
    ]
    return errors + [
        {
            "operation": c["status"],
            "config": parse_config(c["config"]).to_json(),
            "error": c["reason"],
        }
        for c in run_candidates(connection, run)
        if c["status"] in ("refused", "failed")
    ]


C_NAMES = {
    "tile_id": ("TILE_ID", "uint32_t"),
    "stages_id": ("STAGES_ID", "uint32_t"),
    "split_k": ("SPLITK_NUM", "int32_t"),
    "reduction_scheme": ("REDUCTION_SCHEME", "uint32_t"),
    "cta_swizzle": ("CTA_SWIZZLING", "uint32_t"),
    "custom_option": ("CUSTOM_OPTION", "uint32_t"),
    "inner_shape": ("INNER_SHAPE_ID", "uint16_t"),
    "cluster_shape": ("CLUSTER_SHAPE_ID", "uint16_t"),
}
"""Attribute names and their types in cublasLt.h; the last two are 16 bits wide."""


C_TYPES = {"bf16": "CUDA_R_16BF", "fp8_e4m3": "CUDA_R_8F_E4M3", "nvfp4": "CUDA_R_4F_E2M1"}


C_HEADER = "#include <cublasLt.h>\n#include <stdint.h>"


def c_function(row: Mapping[str, Any]) -> str:
    """A C function that builds a stored cuBLASLt config; the algo is to be checked before it runs.

    Several in one file do not disturb each other: each is named after its result's number.
    """
    config: AlgorithmConfig = parse_config(row["config"])
    operand = C_TYPES[row["precision"]]
    fast = " with fast accumulation" if row["fast_accumulation"] else ""
    lines = [
        f"// {row['m']}x{row['n']}x{row['k']} {row['precision']}{fast} on {row['gpu']}, "
        f"cuBLASLt {row['cublaslt']}: {(row['ratio'] - 1) * 100:+.1f} %, {row['verdict']}",
        f"// needs {row['required_workspace']} bytes of workspace; valid for that library only.",
        "// Call cublasLtMatmulAlgoCheck() on the algo before cublasLtMatmul().",
        f"cublasStatus_t kclab_result_{row['result_id']}(",
        "    cublasLtHandle_t handle, cublasLtMatmulAlgo_t *algo)",
        "{",
        "    cublasStatus_t status = cublasLtMatmulAlgoInit(",
        "        handle, CUBLAS_COMPUTE_32F, CUDA_R_32F,",
        f"        {operand}, {operand}, CUDA_R_16BF, CUDA_R_16BF,",
        f"        {config.algorithm_id}, algo);",
    ]
    for name, (attribute, kind) in C_NAMES.items():
        lines += [
            "    if (status == CUBLAS_STATUS_SUCCESS) {",
            f"        const {kind} v = {getattr(config, name)};",
            "        status = cublasLtMatmulAlgoConfigSetAttribute(",
            f"            algo, CUBLASLT_ALGO_CONFIG_{attribute}, &v, sizeof v);",
            "    }",
        ]
    return "\n".join([*lines, "    return status;", "}"])
