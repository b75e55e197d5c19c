"""The search over the fakes: it finds what is fastest and right, and says why not the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from rich.console import Console

from kclab.cli.fc2_show import shown_race
from kclab.core.errors import EnvironmentLacking
from kclab.core.stats import Verdict
from kclab.fc2.backends.cublaslt import CublasLt
from kclab.fc2.bench import Bench
from kclab.fc2.operands import make_operands, synthetic_inputs
from kclab.fc2.problem import Precision, Problem
from kclab.fc2.producer import swiglu
from kclab.fc2.search import Event, Known, Options, Outcome, search
from kclab.fc2.search.finals import Result
from kclab.fc2.search.pool import Entry


@dataclass
class Kept:
    """A sink that keeps everything."""

    questions: list[tuple[int, int, int, str | None]] = field(default_factory=list)
    tried: dict[str, Entry] = field(default_factory=dict)
    results_: list[Result] = field(default_factory=list)
    writes: Counter[str] = field(default_factory=Counter)

    def enumerated(self, budget: int, requested: int, returned: int, error: str | None) -> None:
        self.questions.append((budget, requested, returned, error))

    def entries(self, entries: Sequence[Entry]) -> None:
        self.tried.update({entry.name: entry for entry in entries})
        self.writes.update(entry.name for entry in entries)

    def results(self, results: Sequence[Result]) -> None:
        self.results_ += results


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(cublaslt: CublasLt) -> MakeBench:
    def make(
        precision: Precision = Precision.BF16,
        *,
        fast: bool = False,
        m: int = 10,
        k: int = 96,
        workspace: int = 64 << 20,
    ) -> Bench:
        problem = Problem(precision, m, 32, k, fast)
        gate_up, weight = synthetic_inputs(problem, 1, "cpu")
        operands = make_operands(problem, swiglu(gate_up), weight)
        return Bench(CublasLt.load(), problem, operands, workspace, gate_up=gate_up)

    return make


def run(bench: Bench, **options: object) -> tuple[Outcome, Kept, list[Event]]:
    kept, events = Kept(), []
    outcome = search(bench, Options(**options), kept, events.append)  # type: ignore[arg-type]
    return outcome, kept, events


_WHOLE: list[tuple[Outcome, Kept, list[Event]]] = []


@pytest.fixture
def whole(bench: MakeBench) -> tuple[Outcome, Kept, list[Event]]:
    """One search of the whole space, made once and only looked at."""
    if not _WHOLE:
        _WHOLE.append(run(bench(), seconds=120))
    return _WHOLE[0]


def test_heuristics_alone_give_an_answer(bench: MakeBench) -> None:
    outcome, kept, _ = run(bench(), until="heuristics")
    assert outcome.exact and outcome.exact.config.tile_id == 22
    assert outcome.exact.algorithm.verdict is Verdict.FAST
    assert outcome.exact.gain == pytest.approx(1 / 0.95, rel=0.005)
    assert kept.questions[0][:3] == (0, 32, 7)


def test_widening_brings_more_and_says_how_much(
    whole: tuple[Outcome, Kept, list[Event]],
) -> None:
    outcome, kept, _ = whole
    assert list(outcome.stages) == ["heuristics", "neighbours", "space"]
    assert outcome.exact and outcome.complete
    best = outcome.exact
    assert (best.config.tile_id, best.config.cluster_shape, best.config.split_k) == (23, 4, 2)
    assert best.counts and best.algorithm.verdict is Verdict.FAST
    gains = [r.gain for r in kept.results_ if r.counts and r.stage == "heuristics"]
    assert best.gain > max(gains)


def test_fastest_at_any_price_is_inexact_but_sound(
    whole: tuple[Outcome, Kept, list[Event]],
) -> None:
    outcome, _, _ = whole
    assert outcome.any and not outcome.any.exact and outcome.any.sound
    assert outcome.any.parity.different > 0
    assert outcome.exact and outcome.any.gain > outcome.exact.gain


def test_faulty_algorithms_win_nothing(whole: tuple[Outcome, Kept, list[Event]]) -> None:
    outcome, kept, _ = whole
    failed = {
        (check.name, entry.config.algorithm_id)
        for entry in kept.tried.values()
        for check in entry.checks
        if not check.passed
    }
    assert ("ones", 21) in failed, "drops the K tail"
    assert ("determinism", 71) in failed, "two runs differ"
    assert outcome.exact and outcome.exact.config.algorithm_id == 66
    assert outcome.any and outcome.any.config.algorithm_id != 21


def test_padding_reader_is_found(bench: MakeBench) -> None:
    outcome, kept, _ = run(bench(Precision.FP8, fast=True), seconds=120)
    reader = [e for e in kept.tried.values() if e.config.algorithm_id == 31 and e.checks]
    assert reader and not any(entry.sound for entry in reader)
    reasons = {c.detail for e in reader for c in e.checks if not c.passed}
    assert any("NaN in the padding rows reaches" in str(reason) for reason in reasons)
    assert outcome.any and outcome.any.config.algorithm_id == 66


def test_configs_that_launch_the_same_are_folded(
    whole: tuple[Outcome, Kept, list[Event]],
) -> None:
    _, kept, _ = whole
    folded = [entry for entry in kept.tried.values() if entry.status == "folded"]
    assert folded and all("launches the same as" in (entry.reason or "") for entry in folded)
    assert all(entry.samples == 0 for entry in folded)


def test_config_refused_at_its_run_keeps_the_reason(
    whole: tuple[Outcome, Kept, list[Event]],
) -> None:
    _, kept, _ = whole
    refused = [e for e in kept.tried.values() if e.status == "refused"]
    assert {(e.config.tile_id, e.config.custom_option) for e in refused} == {(25, 1)}
    assert all("NOT_SUPPORTED" in (e.reason or "") for e in refused)


def test_without_fast_accumulation_nothing_is_faster(bench: MakeBench) -> None:
    outcome, _, _ = run(bench(Precision.FP8), seconds=120, until="neighbours")
    assert outcome.exact and outcome.exact.is_control
    assert outcome.exact.algorithm.verdict is Verdict.SAME


def test_with_fast_accumulation_it_is(bench: MakeBench) -> None:
    outcome, _, _ = run(bench(Precision.FP8, fast=True), until="heuristics")
    assert outcome.exact and outcome.exact.algorithm.verdict is Verdict.FAST


def test_workspace_bounds_what_is_tried(bench: MakeBench) -> None:
    outcome, kept, _ = run(bench(workspace=0), seconds=120)
    assert outcome.exact and outcome.exact.candidate.required_workspace == 0
    over = [e for e in kept.tried.values() if e.candidate.required_workspace > 0]
    assert over and all(e.status == "refused" and "workspace" in (e.reason or "") for e in over)


def test_nvfp4_goes_the_whole_way_from_capability_10(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_FAKE_CAPABILITY", "10.0")
    outcome, _, _ = run(bench(Precision.NVFP4), seconds=120, until="neighbours")
    assert outcome.exact and outcome.exact.counts
    assert {check.name for check in outcome.exact.checks} >= {"padding", "ones", "determinism"}


def test_nvfp4_below_is_an_environment_that_lacks(bench: MakeBench) -> None:
    with pytest.raises(EnvironmentLacking, match=r"compute capability 10\.0"):
        bench(Precision.NVFP4)


def test_budget_ends_the_widening_but_never_the_answer(bench: MakeBench) -> None:
    outcome, _, _ = run(bench(), seconds=0.0)
    assert list(outcome.stages) == ["heuristics"]
    assert outcome.exact and not outcome.complete


def test_exhaustive_times_every_distinct_launch(bench: MakeBench) -> None:
    outcome, kept, _ = run(bench(), seconds=float("inf"), exhaustive=True)
    assert outcome.complete
    valid = [entry for entry in kept.tried.values() if entry.status == "valid"]
    assert len(valid) > 500 and all(entry.samples >= 1 for entry in valid)
    space = [entry for entry in valid if entry.candidate.origin == "space"]
    once = [entry for entry in space if entry.samples == 1]
    assert once and all((entry.ratio or 0) < 1.0 for entry in once), "what cannot win, only"
    assert all(kept.writes[entry.name] == 1 for entry in once if entry.exact is None)


def test_what_earlier_runs_tried_is_left_out_of_the_space(
    bench: MakeBench, whole: tuple[Outcome, Kept, list[Event]]
) -> None:
    _, before, _ = whole
    seen = frozenset(entry.config for entry in before.tried.values())
    kept = Kept()
    outcome = search(bench(), Options(seconds=120), kept, known=Known(seen=seen))
    assert outcome.complete and outcome.exact
    assert not [e for e in kept.tried.values() if e.candidate.origin == "space"]


def test_a_long_stage_says_how_far_it_is(
    whole: tuple[Outcome, Kept, list[Event]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, events = whole
    between = [event for event in events if event.text == "screened"]
    assert between and between[-1].leaders
    with shown_race() as watch:
        for seconds in (1.0, 5.5, 6.0, 11.0):
            watch(replace(between[-1], seconds=seconds))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["space after 5.5 s", "space after 11.0 s"]
    assert "distinct launches so far" in lines[0]


def test_a_spent_budget_shortens_the_first_stage_too(bench: MakeBench) -> None:
    outcome, kept, _ = run(bench(), seconds=0.0)
    raced = [entry.samples for entry in kept.tried.values() if entry.status == "valid"]
    assert max(raced) == 1 and outcome.exact is not None, "an answer all the same"


def test_control_is_in_every_round(bench: MakeBench) -> None:
    _, kept, _ = run(bench(), until="heuristics")
    for result in kept.results_:
        rounds: dict[int, set[str]] = {}
        for sample in result.samples:
            rounds.setdefault(sample.round, set()).add(sample.arm)
        assert all({"A", "B0"} <= arms for arms in rounds.values())


def test_the_winner_is_measured_on_samples_of_its_own(
    whole: tuple[Outcome, Kept, list[Event]],
) -> None:
    _, kept, _ = whole
    final = {s.round for r in kept.results_ if r.stage == "final" for s in r.samples}
    others = {s.round for r in kept.results_ if r.stage != "final" for s in r.samples}
    assert final and not final & others


def test_a_terminal_is_shown_the_race_as_a_live_table(
    whole: tuple[Outcome, Kept, list[Event]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    _, _, events = whole
    ends = [event for event in events if event.text != "screened"]
    with shown_race() as watch:
        for event in ends:
            watch(event)
    shown = capsys.readouterr().err
    assert all(f"{event.stage} after" in shown for event in ends)
    assert "against rank 0" in shown and ends[-1].leaders[0][0] in shown
