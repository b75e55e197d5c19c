"""A reported gain is one that its own samples did not choose."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kclab.core.stats import Verdict
from kclab.fc2.backends import Candidate, Launch
from kclab.fc2.backends.cpu import Cpu, CpuGemm
from kclab.fc2.bench import Bench
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.operands import make_operands
from kclab.fc2.problem import Precision, Problem
from kclab.fc2.search import Options, Outcome, search
from kclab.fc2.search.finals import held, within_budgets
from kclab.fc2.timing import Arm, Rounds
from tests.fc2.test_search import Kept

PLANTED = 1.05
"""How much faster than B0 every other config of the planted space truly is."""

NOISE = 0.012


class PlantedGemm(CpuGemm):
    """The CPU's exact multiplication under twenty names, with times that are drawn."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.draw = random.Random(7)
        self.last = 0.0

    def _configs(self) -> list[AlgorithmConfig]:
        return [AlgorithmConfig(1, swizzle_or_thread) for swizzle_or_thread in range(20)]

    def enumerate(self, budget: int, wanted: int) -> list[Candidate]:
        configs = self._configs()[:wanted]
        return [Candidate(c, 0, None, "heuristic", budget, i) for i, c in enumerate(configs)]

    def _all(self) -> list[AlgorithmConfig]:
        return self._configs()

    def _reason(self, config: AlgorithmConfig) -> str | None:
        return None

    def fingerprint(self, prepared: AlgorithmConfig) -> Launch:
        return Launch(prepared.text, (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, 1, hash(prepared))

    def run(self, prepared: AlgorithmConfig, operands: Any = None) -> None:
        super().run(AlgorithmConfig(1), operands)
        truth = 1.0 if prepared.tile_id == 0 else 1 / PLANTED
        self.last = truth * (1 + self.draw.gauss(0, NOISE))


class PlantedClock:
    """Says what the planted GEMM drew; any other arm takes 1 ms."""

    policy, settles = "cold", 0.0

    def __init__(self, gemm: Callable[[], PlantedGemm]):
        self._gemm = gemm

    def sample(self, launch: Callable[[], None]) -> float:
        self._gemm().last = 1.0
        launch()
        return self._gemm().last

    def series(
        self, gemm: Any, prepared: Sequence[Any], order: Sequence[int]
    ) -> list[float | None]:
        return [self.sample(lambda p=prepared[place]: gemm.run(p)) for place in order]


class PlantedCpu(Cpu):
    """The processor with the planted GEMM."""

    gemm: PlantedGemm

    def open(self, problem: Problem, operands: Any, workspace_bytes: int) -> CpuGemm:
        self.gemm = PlantedGemm(problem, operands.to("cpu"), workspace_bytes)
        return self.gemm

    def clock(self, *, cold: bool) -> Any:
        return PlantedClock(lambda: self.gemm)


def planted_search(seed: int) -> tuple[Outcome, Kept]:
    problem = Problem(Precision.BF16, 4, 8, 16)
    operands = make_operands(problem, torch.randn(4, 16), torch.randn(8, 16))
    bench = Bench(PlantedCpu(), problem, operands, 0)
    bench.gemm.draw.seed(seed)  # type: ignore[attr-defined]  # the planted one has it
    kept = Kept()
    return search(bench, Options((0,), seconds=30, until="heuristics", seed=seed), kept), kept


def test_the_reported_gain_is_the_planted_one() -> None:
    reported = []
    for seed in range(12):
        outcome, kept = planted_search(seed)
        assert outcome.exact and not outcome.exact.is_control
        assert outcome.exact.stage == "final"
        reported.append(outcome.exact.gain)
        rounds = [
            {s.round for r in kept.results_ if (r.stage == "final") is f for s in r.samples}
            for f in (True, False)
        ]
        assert rounds[0] and not rounds[0] & rounds[1], "no sample both chooses and reports"
    assert sum(reported) / 12 == pytest.approx(PLANTED, abs=0.0025)


def result(tile: int, gain: float, verdict: Verdict, workspace: int = 0) -> Any:
    """As much of a Result as choosing looks at."""

    class Stub:
        config = AlgorithmConfig(1, tile)
        candidate = Candidate(AlgorithmConfig(1, tile), workspace, None, "space")
        is_control = tile == 0
        counts = sound = checked = exact = True

    stub = Stub()
    stub.gain = gain  # type: ignore[attr-defined]  # a stand-in, not a Result
    algorithm = type("A", (), {"verdict": verdict, "floor": 0.001})()
    stub.algorithm = algorithm  # type: ignore[attr-defined]  # a stand-in, as above
    return stub


def test_fresh_samples_do_not_choose_again() -> None:
    before = result(1, 1.05, Verdict.FAST)
    fresh = [
        result(0, 1.0, Verdict.SAME),
        result(1, 1.02, Verdict.FAST),
        result(2, 1.03, Verdict.FAST),
    ]
    assert held(fresh, before) is fresh[1]


def test_what_does_not_hold_gives_way() -> None:
    before = result(1, 1.05, Verdict.FAST)
    fresh = [result(0, 1.0, Verdict.SAME), result(1, 1.001, Verdict.SAME)]
    assert held(fresh, before) is fresh[0]


def test_every_budgets_winner_is_measured_again() -> None:
    results = [
        result(0, 1.0, Verdict.SAME, 33),
        result(1, 1.05, Verdict.FAST, 20),
        result(2, 0.9, Verdict.SLOW, 0),
    ]
    assert [r.config.tile_id for r in within_budgets(results, [0, 20, 40])] == [2, 1]


def test_settling_ends_when_the_control_stands_still() -> None:
    class Warming:
        policy, settles = "cold", 5.0

        def __init__(self) -> None:
            self.times = [2.0 - 0.01 * n for n in range(100)]

        def sample(self, launch: Callable[[], None]) -> float:
            launch()
            return self.times.pop(0) if self.times else 1.0

    import time

    clock = Warming()
    rounds = Rounds(clock, random.Random(0))  # type: ignore[arg-type]  # no series here
    rounds.settle([Arm("B0", lambda: time.sleep(0.01))], "B0")
    assert not clock.times and rounds.next_round == 0, "it waited, and kept nothing"


def test_a_device_that_needs_no_settling_is_not_kept_busy() -> None:
    def fail() -> None:
        raise AssertionError("launched")

    clock = PlantedClock(lambda: pytest.fail("sampled"))
    Rounds(clock, random.Random(0)).settle([Arm("B0", fail)], "B0")
