"""Gates: a candidate in FC2's place inside real blocks and over the denoising loop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kclab.blob.folder import BlobFolder
from kclab.blob.safetensors_file import TensorSlot
from kclab.cli.progress import shown_progress
from kclab.core.errors import BadUsage, CheckFailed
from kclab.db.store import Store
from kclab.fc2 import block_gate, gate_block, trajectory_gate
from kclab.fc2.backends.cpu import Cpu, CpuGemm
from kclab.fc2.gate_block import GateOptions, compare_ways
from kclab.fc2.h3_boundary import Traversal, Wanted, traverse
from kclab.fc2.h3_fc2 import CandidateFc2, check_shape
from kclab.fc2.h3_options import H3Options
from kclab.fc2.parity import output_sha256
from kclab.fc2.problem import Precision, Problem
from kclab.h3.feed_forward import Fc2, fc2_of, replaced
from kclab.h3.request import TINY_REQUEST
from kclab.h3.sizes import TINY
from tests.conftest import Cli

REQUEST = replace(TINY_REQUEST, steps=3)
OPTIONS = H3Options(sizes=TINY, request=REQUEST)
QUICK = GateOptions(rounds=1, warmup=0)
WHOLE = "1:0:0:1:0:0:0:0:0"
BF16_PARTIALS = "3:0:0:4:4:0:0:0:0"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products on a busy machine: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gates(store: Store) -> list[dict[str, Any]]:
    """Gate rows, their detail decoded."""
    with closing(store.read()) as connection:
        rows = connection.execute(
            "SELECT g.kind, g.status, g.detail, b.block FROM fc2_gate g"
            " JOIN fc2_boundary b ON b.id = g.boundary_id ORDER BY g.id"
        ).fetchall()
    return [{**dict(row), "detail": json.loads(row["detail"])} for row in rows]


@pytest.mark.parametrize("precision", list(Precision))
def test_an_exact_candidate_passes_in_all_three_blocks(store: Store, precision: Precision) -> None:
    options = replace(OPTIONS, precision=precision)
    report = block_gate(store, options, "cpu", replace(QUICK, candidate=WHOLE))
    assert [(result.block, result.exact) for result in report.blocks] == [
        (0, True),
        (24, True),
        (49, True),
    ]
    rows = gates(store)
    assert [(row["kind"], row["status"], row["block"]) for row in rows] == [
        ("block", "passed", 0),
        ("block", "passed", 24),
        ("block", "passed", 49),
    ]
    names = ("candidate_vs_baseline", "baseline_vs_traversal", "candidate_vs_traversal")
    assert all(row["detail"][name]["exact"] for row in rows for name in names)


def test_both_ways_of_a_block_are_timed_side_by_side(store: Store) -> None:
    block_gate(store, OPTIONS, "cpu", GateOptions(candidate=WHOLE, rounds=6))
    with closing(store.read()) as connection:
        rows = connection.execute(
            "SELECT m.id, m.name, m.pairs, count(*), group_concat(DISTINCT s.arm)"
            " FROM measurement m JOIN timing_sample s ON s.measurement_id = m.id GROUP BY m.id"
        ).fetchall()
    assert [(row[1], row[2], row[3]) for row in rows] == [
        (f"fc2 block {block} {WHOLE}", 6, 24) for block in (0, 24, 49)
    ]
    assert {row[4] for row in rows} <= {"A,B", "B,A"}
    timing = gates(store)[0]["detail"]["timing"]
    assert timing["measurement"] == rows[0][0]
    assert timing["baseline"]["p95_ms"] >= timing["baseline"]["p50_ms"] > 0


def test_partial_sums_in_bf16_fail_and_say_how_much_differs(store: Store) -> None:
    with pytest.raises(CheckFailed, match=r"not byte-exact in block 0: candidate_vs_baseline: \d+"):
        block_gate(store, OPTIONS, "cpu", replace(QUICK, candidate=BF16_PARTIALS))
    rows = gates(store)
    assert [row["status"] for row in rows] == ["failed"] * 3
    detail = rows[0]["detail"]
    assert detail["baseline_vs_traversal"]["exact"]
    assert detail["candidate_vs_baseline"]["different"] > 0
    assert detail["candidate_vs_traversal"]["different"] > 0


def test_a_baseline_that_changed_since_the_traversal_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restless(options: H3Options, backend: Any, progress: Any) -> Traversal:
        taken = traverse(options, backend, Wanted(options.blocks, options.blocks))
        output = taken.boundaries[24].block_output
        assert output is not None
        output[3, 5] += 1
        return taken

    monkeypatch.setattr(gate_block, "_take", restless)
    with pytest.raises(CheckFailed, match="in block 24: baseline_vs_traversal: 1 of 7872"):
        block_gate(store, OPTIONS, "cpu", replace(QUICK, candidate=WHOLE))


def test_an_unexpected_shape_is_refused() -> None:
    problem = Problem(Precision.BF16, 123, 64, 128)
    check_shape(problem, torch.empty(123, 256))
    with pytest.raises(CheckFailed, match="got 124 rows; the shared output was allocated for 123"):
        check_shape(problem, torch.empty(124, 256))
    with pytest.raises(CheckFailed, match=r"shape \[100, 256\], \[123, 256\] is expected"):
        check_shape(problem, torch.empty(100, 256))
    with pytest.raises(CheckFailed, match=r"shape \[123, 128\]"):
        check_shape(problem, torch.empty(123, 128))


def test_a_candidate_refuses_more_rows_than_its_output_has() -> None:
    taken = traverse(OPTIONS, Cpu(), Wanted((24,), (24,)))
    gemm = Cpu().open(taken.problem, taken.boundaries[24].operands, 1 << 20)
    fc2 = fc2_of(taken.model.blocks[24])
    from kclab.fc2.config import parse_config

    method = CandidateFc2(gemm, gemm.prepare(parse_config(WHOLE)), taken.weights).method(fc2)
    with pytest.raises(CheckFailed, match="shared output"):
        method(torch.zeros(128, 256, dtype=torch.bfloat16))


def test_fc2s_method_is_restored_even_after_an_error() -> None:
    fc2 = Fc2(8, 4)
    own = fc2.method
    with replaced(fc2, lambda gate_up: gate_up):
        assert fc2.method is not own
    assert fc2.method == own
    with pytest.raises(RuntimeError), replaced(fc2, lambda gate_up: gate_up):
        raise RuntimeError
    assert fc2.method == own


def count_runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the runner's products."""
    runs: Counter[str] = Counter()
    original = CpuGemm.run

    def counted(self: CpuGemm, prepared: Any, operands: Any = None) -> None:
        runs["bound" if operands is None else "given"] += 1
        original(self, prepared, operands)

    monkeypatch.setattr(CpuGemm, "run", counted)
    return runs


@pytest.mark.parametrize("precision", list(Precision))
def test_a_trajectory_replaces_fc2_in_every_block_of_every_step(
    store: Store, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    runs = count_runs(monkeypatch)
    options = replace(OPTIONS, precision=precision)
    report = trajectory_gate(store, options, "cpu", GateOptions(candidate=WHOLE))
    assert runs["given"] == 50 * 3
    assert (report.steps, report.steps_in_all) == (3, 3)
    assert all(parity.exact for parity in report.parities.values())
    assert {name: parity.elements for name, parity in report.parities.items()} == {
        "video": 8 * 7 * 4 * 6,
        "audio": 8 * 2 * 37,
    }
    (row,) = gates(store)
    assert (row["kind"], row["status"], row["block"]) == ("trajectory", "passed", 24)
    detail = row["detail"]
    percent = (1 - detail["candidate_seconds"] / detail["baseline_seconds"]) * 100
    assert detail["improvement_percent"] == pytest.approx(percent)


def test_the_gpus_state_after_each_step_of_both_ways_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpu:
        def glance(self) -> tuple[int, int, int]:
            return 1755, 60, 0x4

    monkeypatch.setattr("kclab.fc2.gate_trajectory.watch_gpu", lambda _backend: Gpu())
    trajectory_gate(store, OPTIONS, "cpu", GateOptions(candidate=WHOLE))
    (row,) = gates(store)
    found = row["detail"]["conditions"]
    steps = [[step, 1755, 60, 0x4] for step in (1, 2, 3)]
    assert (found["baseline"], found["candidate"]) == (steps, steps)


def test_an_inexact_trajectory_fails_with_its_row_kept(store: Store) -> None:
    with pytest.raises(CheckFailed, match=r"after 3 steps: video: \d+ of 1344"):
        trajectory_gate(store, OPTIONS, "cpu", GateOptions(candidate=BF16_PARTIALS))
    (row,) = gates(store)
    assert row["status"] == "failed"
    assert row["detail"]["audio"]["different"] > 0


def test_a_time_limit_stops_after_the_steps_that_fit_both_ways(store: Store) -> None:
    report = trajectory_gate(store, OPTIONS, "cpu", GateOptions(candidate=WHOLE), max_seconds=0)
    assert (report.steps, report.steps_in_all) == (1, 3)


def test_a_trajectory_cannot_start_from_captured_activations(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="starts from noise"):
        trajectory_gate(store, replace(OPTIONS, input=tmp_path), "cpu")


@pytest.mark.parametrize("gate", [block_gate, trajectory_gate])
def test_gates_run_over_the_fake_cuda_libraries(
    store: Store, fake_environment: dict[str, str], gate: Callable[..., Any]
) -> None:
    gate(store, replace(OPTIONS, precision=Precision.BF16), "cublaslt", QUICK)
    assert {row["status"] for row in gates(store)} == {"passed"}


def test_gates_show_beside_the_winner_that_they_are_about(invoke: Cli, tmp_path: Path) -> None:
    database = tmp_path / "kclab.db"

    def fc2(*words: object) -> Any:
        done = invoke("--db", database, "fc2", *words, "-f", "json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    boundaries = fc2("capture", "--tiny", "--backend", "cpu")
    probe = next(row["workload"] for row in boundaries if row["block"] == 24)
    fc2("sweep", probe, "--backend", "cpu", "--until", "heuristics", "--budget", "1s")
    assert [row["gates"] for row in fc2("best")] == ["not gated"]
    config = fc2("best")[0]["config"]
    rows = fc2("block-gate", "--tiny", "--backend", "cpu", "--rounds", 1)
    assert {row["config"] for row in rows} == {config}, "the stored best is the candidate"
    assert [row["gates"] for row in fc2("best")] == ["gated"]


def test_a_gate_says_which_block_and_what_it_does_there(store: Store) -> None:
    said: list[str] = []
    block_gate(
        store,
        OPTIONS,
        "cpu",
        replace(QUICK, candidate=WHOLE),
        progress=lambda what, _done, _total: said.append(what),
    )
    assert said[0] == "making the model"
    for block in (0, 24, 49):
        told = [what.partition(": ")[2] for what in said if what.startswith(f"block {block}:")]
        assert told[-3:] == [
            "timing baseline and candidate",
            "comparing outputs",
            "storing its boundary",
        ]


def test_long_work_without_a_terminal_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kclab.cli.progress.SAY_EVERY", 0.0)
    with shown_progress(lines=True) as progress:
        progress("block 24: comparing outputs", 1, 3)
    with shown_progress() as progress:
        progress("unheard", 1, 3)
    assert capsys.readouterr().err == "after 0 s: block 24: comparing outputs, 1 of 3\n"


def test_equal_outputs_of_a_gate_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[torch.Tensor] = []

    def counting(tensor: torch.Tensor) -> str:
        hashed.append(tensor)
        return output_sha256(tensor)

    monkeypatch.setattr("kclab.fc2.parity.output_sha256", counting)
    first = torch.arange(12, dtype=torch.bfloat16)
    found = compare_ways(first.clone(), first.clone(), first)
    assert all(parity.exact for parity in found.values()) and len(hashed) == 1
    other = compare_ways(first + 1, first.clone(), first)
    assert other["candidate_vs_traversal"].expected_sha256 == output_sha256(first)
    assert other["candidate_vs_baseline"].actual_sha256 == output_sha256(first + 1)


def test_a_boundary_stored_before_is_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    verify = BlobFolder.verify

    def counting(folder: BlobFolder, sha256: str) -> TensorSlot:
        read.append(sha256)
        return verify(folder, sha256)

    monkeypatch.setattr(BlobFolder, "verify", counting)
    for _ in range(2):
        read.clear()
        block_gate(store, OPTIONS, "cpu", replace(QUICK, candidate=WHOLE))
    assert not read
