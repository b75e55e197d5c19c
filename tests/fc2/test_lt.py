"""The C library and its binding, built with warnings as errors and run over the fakes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
import torch

from kclab.core.errors import EnvironmentLacking
from kclab.fc2 import build, lt
from kclab.fc2.backends import Prepared, Refused
from kclab.fc2.backends.cublaslt import CublasLt, LtGemm
from kclab.fc2.backends.space import SHAPE, other_rows
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.lt_structs import STRUCTS
from kclab.fc2.operands import Operands, exact_rows, synthetic
from kclab.fc2.problem import BASELINE_WORKSPACE, Precision, Problem

PLAIN = AlgorithmConfig(66, 20, 35, 1, 0, 0, 0, 0, 2)


def opened(
    backend: CublasLt, precision: Precision = Precision.BF16, *, fast: bool = False
) -> LtGemm:
    problem = Problem(precision, 21, 32, 96, fast)
    return backend.open(problem, synthetic(problem, 1, "cpu"), BASELINE_WORKSPACE)


def test_it_compiles_without_a_warning(fake_environment: dict[str, str], tmp_path: Path) -> None:
    built = build.build(folder=tmp_path, strict=True)
    assert built.path.is_file() and built.seconds > 0
    assert built.toolkit.header_version == "13.1.0"


def test_a_second_build_comes_from_the_cache(fake_environment: dict[str, str]) -> None:
    first = build.build()
    second = build.build()
    assert (second.path, second.seconds) == (first.path, 0.0)


def test_another_library_is_another_build(
    fake_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.cached(build.find_toolkit(), tmp_path)
    other = tmp_path / "cuda"
    other.mkdir()
    for name in ("libcublasLt.so.13", "libcudart.so.13"):
        (other / name).write_bytes(Path(os.environ["KCLAB_CUDA_LIBRARIES"], name).read_bytes())
    monkeypatch.setenv("KCLAB_CUDA_LIBRARIES", str(other))
    assert build.cached(build.find_toolkit(), tmp_path) != first


def test_missing_compiler_is_said(
    fake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build._compiler.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EnvironmentLacking, match="no-such-compiler"):
        build.build(folder=tmp_path)


def test_missing_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KCLAB_CUDA_LIBRARIES", str(tmp_path))
    with pytest.raises(EnvironmentLacking, match="libcublasLt"):
        build.find_toolkit()


def test_struct_layouts_agree(cublaslt: CublasLt) -> None:
    library = ctypes.CDLL(str(cublaslt.built.path))
    sizes = [library.kclab_lt_sizeof(i) for i in range(len(STRUCTS) + 1)]
    assert sizes == [*(ctypes.sizeof(struct) for struct in STRUCTS), -1]


def test_versions_and_device_are_read(cublaslt: CublasLt) -> None:
    facts = cublaslt.facts()
    assert facts["cublaslt"] == "130100" and facts["capability"] == "9.0"
    assert facts["gpu"] == "kclab fake GPU"


def test_heuristic_stays_within_its_budget(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    ranked = gemm.enumerate(BASELINE_WORKSPACE, 32)
    assert len(ranked) == 8, "the library gives eight, however many are asked for"
    assert ranked[0].config == PLAIN and ranked[0].rank == 0
    assert {c.required_workspace for c in gemm.enumerate(0, 32)} == {0}


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
@pytest.mark.parametrize("split", [(1, 0), (2, 2), (3, 2)])
def test_a_run_gives_the_real_product(
    cublaslt: CublasLt, precision: Precision, split: tuple[int, int]
) -> None:
    gemm = opened(cublaslt, precision)
    config = AlgorithmConfig(66, 21, 35, *split, cluster_shape=2)
    gemm.run(gemm.prepare(config))
    rows = torch.arange(gemm.problem.m)
    assert torch.equal(gemm.output[: gemm.problem.m], exact_rows(gemm.problem, gemm.operands, rows))


def test_nvfp4_runs_from_capability_10(cublaslt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCLAB_FAKE_CAPABILITY", "10.0")
    gemm = opened(CublasLt.load(), Precision.NVFP4)
    best = gemm.enumerate(BASELINE_WORKSPACE, 4)[0]
    gemm.run(gemm.prepare(best.config))
    rows = torch.arange(gemm.problem.m)
    assert torch.equal(gemm.output[: gemm.problem.m], exact_rows(gemm.problem, gemm.operands, rows))


def test_nvfp4_below_capability_10_is_refused_with_the_reason(cublaslt: CublasLt) -> None:
    problem = Problem(Precision.NVFP4, 21, 32, 96)
    with pytest.raises(EnvironmentLacking, match=r"compute capability 10\.0.*has 9\.0"):
        cublaslt.require(problem)
    gemm = cublaslt.open(problem, synthetic(problem, 1, "cpu"), 0)
    with pytest.raises(Refused, match=r"NOT_SUPPORTED.*FP4 needs compute capability"):
        gemm.enumerate(0, 8)
    assert gemm.space() and not list(next(gemm.space(), []))


def test_nvfp4_without_scale_addresses_is_refused(
    cublaslt: CublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_FAKE_CAPABILITY", "10.0")
    problem = Problem(Precision.NVFP4, 21, 32, 96)
    full = synthetic(problem, 1, "cpu")
    gemm = cublaslt.open(problem, Operands(full.activation, full.weight), 0)
    with pytest.raises(Refused, match="requires a custom pointer"):
        gemm.enumerate(0, 8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile_id": 18}, "tile is not built"),
        ({"split_k": 2}, "reduction scheme does not fit"),
        ({"cluster_shape": 9}, "cluster shape is not supported"),
        ({"algorithm_id": 5}, "INVALID_VALUE.*unknown algorithm"),
    ],
)
def test_refusal_carries_the_librarys_own_words(
    cublaslt: CublasLt, change: dict[str, int], reason: str
) -> None:
    gemm = opened(cublaslt)
    config = AlgorithmConfig(**{**PLAIN.to_json(), **change})
    check = gemm.check(config)
    assert not check.valid and check.required_workspace is None
    assert check.reason is not None
    with pytest.raises(Refused, match=reason):
        gemm.prepare(config)


def test_refusal_leaves_stdout_to_the_caller(
    cublaslt: CublasLt, capfd: pytest.CaptureFixture[str]
) -> None:
    config = AlgorithmConfig(**{**PLAIN.to_json(), "cluster_shape": 9})
    assert opened(cublaslt).check(config).reason is not None
    assert capfd.readouterr().out == ""


def test_accepted_config_may_still_refuse_to_run(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    config = AlgorithmConfig(66, 25, 35, 1, 0, 0, 1, 0, 2)
    assert gemm.check(config).valid
    with pytest.raises(Refused, match="cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED"):
        gemm.run(gemm.prepare(config))


def test_run_without_enough_workspace_is_refused(cublaslt: CublasLt) -> None:
    problem = Problem(Precision.BF16, 21, 32, 96)
    gemm = cublaslt.open(problem, synthetic(problem, 1, "cpu"), 64)
    with pytest.raises(Refused):
        gemm.run(gemm.prepare(AlgorithmConfig(66, 20, 35, 2, 2, cluster_shape=2)))


def test_fingerprint_names_the_kernel_and_its_geometry(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    gemm.output.zero_()
    launch = gemm.fingerprint(gemm.prepare(AlgorithmConfig(66, 24, 35, cluster_shape=3)))
    assert launch.kernel == "fake_sm90_bf16_a66_tile24_s35_stream_k" and launch.stream_k
    assert launch.cluster == (2, 1, 1) and launch.block == (384, 1, 1) and launch.kernels == 1
    assert not gemm.output.any(), "a fingerprint runs nothing"


def test_configs_that_launch_the_same_fold(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)

    def launched(**change: int) -> int:
        config = AlgorithmConfig(**{**PLAIN.to_json(), **change})
        return gemm.fingerprint(gemm.prepare(config)).fold

    assert launched() == launched(cta_swizzle=1)
    assert launched() != launched(tile_id=21)
    two = launched(split_k=2, reduction_scheme=2)
    assert two != launched(split_k=2, reduction_scheme=4), "told apart by kernel parameters"


def test_the_whole_space_is_listed(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    found = [candidate.config for portion in gemm.space() for candidate in portion]
    # 3 algorithms x 6 tiles x 2 stages x 4 clusters x 2 customs x 2 swizzles x (1 + 3 x 2) splits
    assert len(found) == len(set(found)) == 3 * 6 * 2 * 4 * 2 * 2 * 7


def test_what_the_library_refuses_plainly_is_not_combined_further(cublaslt: CublasLt) -> None:
    knobs = opened(cublaslt).knobs()[0]
    accepted = lt.as_rows([PLAIN])
    rows = torch.cat(list(other_rows(knobs, accepted)))
    assert {tuple(row) for row in rows[:, SHAPE].tolist()} == {(66, 20, 35, 2)}
    assert len(rows) == len(knobs.splits) * len(knobs.swizzles) * len(knobs.customs) - 1
    none = torch.cat(list(other_rows(knobs, accepted[:0])))
    assert set(none[:, SHAPE[3]].tolist()) == {0} and (none[:, 3] > 1).all(), "split-K alone"


def test_neighbours_differ_in_one_knob(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    found = [candidate.config for candidate in gemm.neighbours(PLAIN)]
    assert PLAIN not in found
    assert {c.tile_id for c in found} == {20, 21, 22, 23, 24, 25}
    changed = [sum(a != b for a, b in zip(c.key, PLAIN.key, strict=True)) for c in found]
    assert all(n == 1 or (n == 2 and c.split_k > 1) for n, c in zip(changed, found, strict=True))


def test_clock_reads_device_time(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    prepared = gemm.prepare(PLAIN)
    clock = cublaslt.clock(cold=True)
    assert clock.policy == "cold"
    assert clock.sample(lambda: gemm.run(prepared)) == pytest.approx(0.5, rel=0.01)
    assert cublaslt.clock(cold=False).policy == "hot"


REFUSED_AT_ITS_RUN = AlgorithmConfig(66, 25, 35, 1, 0, 0, 1, 0, 2)


def test_many_configs_are_prepared_and_fingerprinted_in_one_call(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    wrong = AlgorithmConfig(66, 20, 35, cluster_shape=9)
    found = gemm.launches([PLAIN, wrong, AlgorithmConfig(66, 20, 35, 2, 2, cluster_shape=2)])
    first, refused, split = found
    assert isinstance(first, Prepared) and isinstance(split, Prepared)
    assert first.launch == gemm.fingerprint(gemm.prepare(PLAIN))
    assert first.launch.fold != split.launch.fold
    assert isinstance(refused, Refused) and "cluster shape is not supported" in str(refused)
    gemm.run(split.algorithm)
    rows = torch.arange(gemm.problem.m)
    assert torch.equal(gemm.output[: gemm.problem.m], exact_rows(gemm.problem, gemm.operands, rows))


def test_a_config_that_refuses_when_it_launches_says_so_among_many(cublaslt: CublasLt) -> None:
    _, refused = opened(cublaslt).launches([PLAIN, REFUSED_AT_ITS_RUN])
    assert isinstance(refused, Refused) and "NOT_SUPPORTED" in str(refused)


def test_a_series_times_each_run_of_its_order(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    configs = [PLAIN, AlgorithmConfig(66, 24, 35, cluster_shape=2)]
    prepared = [gemm.prepare(config) for config in configs]
    order = [0, 1, 1] * 50  # more than may be under way at once
    took = cublaslt.clock(cold=True).series(gemm, prepared, order)
    assert took[::3] == pytest.approx([0.5] * 50, rel=0.01)
    assert took[1::3] + took[2::3] == pytest.approx([0.6] * 100, rel=0.01)


def test_a_series_goes_on_after_a_refusal(cublaslt: CublasLt) -> None:
    gemm = opened(cublaslt)
    prepared = [gemm.prepare(PLAIN), gemm.prepare(REFUSED_AT_ITS_RUN)]
    took = cublaslt.clock(cold=True).series(gemm, prepared, [0, 1, 0])
    assert took == [pytest.approx(0.5, rel=0.01), None, pytest.approx(0.5, rel=0.01)]


def test_no_device_is_said(fake_environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="cannot be loaded"):
        lt.Library(tmp_path / "absent.so")


def test_somebody_elses_graph_is_read(cublaslt: CublasLt, fake_cuda: Path) -> None:
    runtime = ctypes.CDLL(str(fake_cuda / "libcudart.so.13"))
    gemm = opened(cublaslt)
    prepared = gemm.prepare(PLAIN)
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaStreamBeginCapture(stream, 0)
    gemm._buffers.stream = stream.value or 0
    assert cublaslt.library.try_run(gemm._handle.address, gemm._buffers, prepared) == 0
    runtime.cudaStreamEndCapture(stream, ctypes.byref(graph))
    found = cublaslt.library.read_graph(graph.value or 0)
    assert found.names.decode() == gemm.fingerprint(prepared).kernel and found.kernels == 1
