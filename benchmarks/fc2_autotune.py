"""kclab's search against nvmath-python's autotune, on one boundary and in one process.

    python -m benchmarks.fc2_autotune --shape 4096x5376x5376 --dtype fp8_e4m3 --fast-accumulation

Needs a GPU, torch's CUDA build and `pip install nvmath-python cuda-core`. Both searches get 32 MiB
of workspace; both winners are then timed through kclab's runner in mirrored rounds, so that only
the choice of algorithm is compared. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.fc2_exhaustive import Forget
from kclab.core.stats import compare_arms
from kclab.fc2.backends import Refused, load_backend
from kclab.fc2.bench import Bench
from kclab.fc2.boundary import synthetic_boundary
from kclab.fc2.choice import explicit_candidate
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.operands import Operands
from kclab.fc2.problem import BASELINE_WORKSPACE, Precision, Problem, parse_shape
from kclab.fc2.search import Event, Options, Search
from kclab.fc2.search.finals import Result

FIELDS = (
    "id",
    "tile_id",
    "stages_id",
    "splitk_num",
    "reduction_scheme",
    "cta_swizzling",
    "custom_option",
    "inner_shape_id",
    "cluster_shape_id",
)
"""nvmath's names of the nine numbers, in kclab's order."""


def main() -> None:
    """Parse, search twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="4096x5376x5376")
    parser.add_argument("--dtype", default="fp8_e4m3", choices=["bf16", "fp8_e4m3"])
    parser.add_argument("--fast-accumulation", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    precision = Precision(given.dtype)
    problem = Problem(precision, *parse_shape(given.shape), given.fast_accumulation)
    backend = load_backend("cublaslt")
    boundary = synthetic_boundary(problem, 440_420, backend.device)
    bench = Bench(backend, problem, boundary.operands, BASELINE_WORKSPACE)
    print(json.dumps(race(bench, problem, given.seconds), indent=2))


def race(bench: Bench, problem: Problem, seconds: float) -> dict[str, Any]:
    """Both searches' times and winners, and the winners against each other."""
    answers: dict[str, float] = {}

    def watch(event: Event) -> None:
        answers.setdefault(event.stage, event.seconds)

    search = Search(bench, Options(seconds=seconds), Forget(), watch)
    outcome = search.run()
    theirs, their_seconds, count = nvmath_choice(problem, bench.gemm.operands)
    ours = outcome.exact.config if outcome.exact else bench.control.candidate.config
    report: dict[str, Any] = {
        "shape": problem.shape,
        "numerics": problem.numerics,
        "kclab": {"config": ours.text, "seconds": answers, "stages": outcome.stages},
        "nvmath": {"config": theirs.text, "seconds": their_seconds, "algorithms": count},
    }
    try:
        search.pool.admit([explicit_candidate(bench.gemm, theirs)])
    except Refused as refusal:
        report["kclab_over_nvmath"] = f"nvmath searched another layout: {refusal}"
        return report
    entries = [search.pool.entries[config] for config in {ours, theirs}]
    results = search.finals.judge(entries, "final", fewest=40)
    for result in results:
        report[result.config.text] = {
            "gain": result.gain - 1,
            "interval": [result.algorithm.ratio.low - 1, result.algorithm.ratio.high - 1],
            "verdict": str(result.algorithm.verdict),
            "exact": result.exact,
            "ms": result.b_ms,
        }
    report["kclab_over_nvmath"] = against(results, ours, theirs)
    return report


def against(results: Sequence[Result], ours: AlgorithmConfig, theirs: AlgorithmConfig) -> Any:
    """nvmath's time over kclab's within rounds; above 1 kclab's choice is faster."""
    if ours == theirs:
        return "the same config"
    by_config = {result.config: result for result in results}
    samples = {s for config in (ours, theirs) for s in by_config[config].samples}
    names = ["B0" if by_config[config].is_control else config.text for config in (theirs, ours)]
    found = compare_arms(sorted(samples, key=lambda s: (s.round, s.position)), *names)
    return {
        "ratio": found.ratio.estimate,
        "interval": [found.ratio.low, found.ratio.high],
        "verdict": str(found.verdict),
    }


def nvmath_choice(problem: Problem, operands: Operands) -> tuple[AlgorithmConfig, float, int]:
    """(its winner, seconds of autotune, algorithms tried), with its own defaults."""
    from nvmath import CudaDataType
    from nvmath.linalg.advanced import Matmul, MatmulOptions

    options: dict[str, Any] = {"memory_limit": BASELINE_WORKSPACE}
    scales = None
    if problem.precision is Precision.FP8:
        options["result_type"] = CudaDataType.CUDA_R_16BF
        options["fast_accumulation"] = problem.fast_accumulation
        assert operands.activation_scale is not None and operands.weight_scale is not None
        scales = {"a": operands.weight_scale, "b": operands.activation_scale}
    # output^T = weight . activation^T: nvmath's column-major result is then kclab's row-major one,
    # and both search the same cuBLASLt problem.
    product = Matmul(
        operands.weight,
        operands.activation.t(),
        options=MatmulOptions(**options),
        quantization_scales=scales,
    )
    with product:
        product.plan()
        torch.cuda.synchronize()
        started = time.perf_counter()
        product.autotune(iterations=10)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        best = product.algorithms[0].config_ifc
        numbers = [int(getattr(best, name)) for name in FIELDS]
        return AlgorithmConfig(*numbers), seconds, len(product.algorithms)


if __name__ == "__main__":
    main()
