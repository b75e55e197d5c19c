"""The data that both ways work on: small GEMM workloads and large blobs, from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.seed_way import Writer
from kclab.core.families import FAMILIES

SMALL_N, SMALL_K = 64, 64


def gemm_definition(n: int = SMALL_N, k: int = SMALL_K) -> dict[str, Any]:
    """The dense GEMM definition that the small workloads use."""
    return dict(FAMILIES["dense_gemm"].make(dtype="bfloat16", n=n, k=k).body)


def write_definition(root: Path, body: dict[str, Any]) -> None:
    """Put a definition beside a root, where both ways look for it."""
    folder = root.parent / "definitions" / body["op_type"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{body['name']}.json").write_text(json.dumps(body, indent=2))


def small_gemms(count: int) -> list[tuple[dict[str, Any], Any, int]]:
    """`count` calls as (inputs, output, rows): bf16, M from 1 to 32, one weight for each 50."""
    import torch

    generator = torch.Generator().manual_seed(1)
    calls = []
    weight = None
    for index in range(count):
        if weight is None or index % 50 == 0:
            weight = torch.randn(SMALL_N, SMALL_K, generator=generator).bfloat16()
        rows = 1 + index % 32
        activation = torch.randn(rows, SMALL_K, generator=generator).bfloat16()
        output = torch.nn.functional.linear(activation, weight)
        calls.append(({"A": activation, "W": weight}, output, rows))
    return calls


def write_small_root(root: Path, count: int, *, validated: bool = False) -> None:
    """A capture root of `count` small GEMMs in the seed's layout, validated if asked."""
    body = gemm_definition()
    write_definition(root, body)
    writer = Writer(root, {body["name"]: body})
    for step, (inputs, output, rows) in enumerate(small_gemms(count)):
        provenance = {"request_id": "benchmark", "step": step, "operation": "linear"}
        writer.write(body["name"], inputs, output, {"M": rows}, provenance)
    if validated:
        write_report(root)


def write_large_root(root: Path, count: int, mebibytes: int) -> None:
    """A validated root whose `count` distinct activations are `mebibytes` MiB each."""
    import torch

    n, k = 1, 4096
    body = gemm_definition(n, k)
    write_definition(root, body)
    writer = Writer(root, {body["name"]: body})
    rows = mebibytes * (1 << 20) // (2 * k)
    weight = torch.zeros(n, k, dtype=torch.bfloat16)
    for step in range(count):
        activation = torch.full((rows, k), float(step + 1), dtype=torch.bfloat16)
        output = torch.zeros(rows, n, dtype=torch.bfloat16)
        provenance = {"request_id": "benchmark", "step": step, "operation": "linear"}
        writer.write(body["name"], {"A": activation, "W": weight}, output, {"M": rows}, provenance)
    write_report(root)


def write_report(root: Path) -> None:
    """A replay report in which every receipt passed, as an import demands."""
    receipts = (root / "results/captures.jsonl").read_text().splitlines()
    cases = [
        {"uuid": row["uuid"], "definition": row["definition"], "status": "passed", "seconds": 0.0}
        for row in map(json.loads, receipts)
    ]
    report = {"torch": "benchmark", "device": "cpu", "tolerances": {}, "cases": cases}
    (root / "results/replay.json").write_text(json.dumps(report))
