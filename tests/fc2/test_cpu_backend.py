"""The CPU's candidates are real: split-K with bf16 partials really changes bytes."""

from __future__ import annotations

import pytest
import torch

from kclab.fc2.backends import Refused, load_backend
from kclab.fc2.backends.cpu import BLOCKED, IN_BF16, IN_FP32, SPLIT, WHOLE, Cpu, CpuGemm
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.operands import exact_rows, synthetic
from kclab.fc2.parity import compare
from kclab.fc2.problem import Precision, Problem


def opened(precision: Precision = Precision.NVFP4) -> CpuGemm:
    problem = Problem(precision, 40, 64, 512)
    return Cpu().open(problem, synthetic(problem, 5, "cpu"), 1 << 20)


def output(gemm: CpuGemm, config: AlgorithmConfig) -> torch.Tensor:
    gemm.run(gemm.prepare(config))
    return gemm.output[: gemm.problem.m].clone()


@pytest.mark.parametrize("precision", list(Precision))
def test_whole_product_agrees_with_the_exact_one(precision: Precision) -> None:
    gemm = opened(precision)
    exact = exact_rows(gemm.problem, gemm.operands, torch.arange(gemm.problem.m))
    found = compare(output(gemm, AlgorithmConfig(WHOLE)), exact)
    assert found.different <= 0.01 * found.elements


@pytest.mark.parametrize("slices", [2, 4, 8])
def test_bf16_partials_fail_parity(slices: int) -> None:
    gemm = opened()
    whole = output(gemm, AlgorithmConfig(WHOLE))
    config = AlgorithmConfig(SPLIT, split_k=slices, reduction_scheme=IN_BF16)
    found = compare(output(gemm, config), whole)
    assert found.different > 0.1 * found.elements


def test_fp32_partials_of_nvfp4_keep_every_byte() -> None:
    gemm = opened()
    whole = output(gemm, AlgorithmConfig(WHOLE))
    config = AlgorithmConfig(SPLIT, split_k=4, reduction_scheme=IN_FP32)
    assert compare(output(gemm, config), whole).different <= 1


def test_row_blocks_keep_the_result() -> None:
    gemm = opened()
    whole = output(gemm, AlgorithmConfig(WHOLE))
    found = compare(output(gemm, AlgorithmConfig(BLOCKED, 16)), whole)
    assert found.different <= 0.01 * found.elements


def test_space_respects_the_workspace() -> None:
    problem = Problem(Precision.BF16, 40, 64, 512)
    gemm = Cpu().open(problem, synthetic(problem, 5, "cpu"), 2 * 40 * 64 * 4)
    found = [c for portion in gemm.space() for c in portion]
    assert {c.config.split_k for c in found if c.config.reduction_scheme == IN_FP32} == {2}
    assert max(c.required_workspace for c in found) <= gemm.workspace_bytes


def test_impossible_config_is_refused_with_a_reason() -> None:
    gemm = opened()
    assert gemm.check(AlgorithmConfig(9)).reason == "no CPU algorithm 9"
    with pytest.raises(Refused, match="slices"):
        gemm.prepare(AlgorithmConfig(SPLIT))


def test_fingerprint_tells_partials_apart() -> None:
    gemm = opened()
    fp32, bf16 = (
        gemm.fingerprint(AlgorithmConfig(SPLIT, split_k=2, reduction_scheme=scheme))
        for scheme in (IN_FP32, IN_BF16)
    )
    assert fp32.kernel == "cpu_mm_splitk_fp32" and fp32.sha256 != bf16.sha256


def test_clock_measures_a_call() -> None:
    import time

    assert load_backend("cpu").clock(cold=True).sample(lambda: time.sleep(0.002)) > 1.9
