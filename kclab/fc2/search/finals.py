"""Finalists against both baselines: mirrored rounds until intervals are narrow, then verdicts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kclab.core.stats import Comparison, Sample, Verdict, compare_arms, median
from kclab.fc2.backends import Candidate, Launch
from kclab.fc2.bench import BASELINE_ARM, CONTROL_ARM, Bench
from kclab.fc2.checks import CheckResult, run_checks, sound
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gpu import GLANCE
from kclab.fc2.parity import Parity, compare
from kclab.fc2.problem import GEMM
from kclab.fc2.search.pool import Entry
from kclab.fc2.timing import Rounds, warm_up

FEWEST_ROUNDS = 20
MOST_ROUNDS = 80
ROUNDS_AT_ONCE = 10
LONGEST = 5.0
"""Seconds after which no rounds are added to the fewest."""

NARROW = 0.0025
"""Half-width of a ratio's interval at which no more rounds are taken."""


@dataclass(slots=True)
class Result:
    """A config measured against A and B0 in one scope."""

    candidate: Candidate
    launch: Launch | None
    scope: str
    stage: str
    baseline: str
    a_ms: float
    b0_ms: float
    b_ms: float
    """Medians, milliseconds."""
    algorithm: Comparison
    """B0 against B."""
    total: Comparison
    """A against B."""
    wrapper: Comparison
    """A against B0."""
    exact: bool
    checks: list[CheckResult]
    parity: Parity
    """B against A."""
    is_control: bool
    search_seconds: float
    """From the search's start until this result stood."""
    samples: list[Sample] = field(repr=False, default_factory=list)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """The GPU `before` and `after` the samples, and `GLANCE` of each of their `rounds`."""

    @property
    def config(self) -> AlgorithmConfig:
        """Its nine numbers."""
        return self.candidate.config

    @property
    def sound(self) -> bool:
        """Whether it computes the product at all."""
        return sound(self.checks)

    @property
    def counts(self) -> bool:
        """Exact, and every check held: eligible as `fastest exact`."""
        return self.exact and self.checked

    @property
    def checked(self) -> bool:
        """Whether every check held."""
        return all(check.passed for check in self.checks)

    @property
    def gain(self) -> float:
        """B0 / B."""
        return self.algorithm.ratio.estimate


@dataclass(slots=True)
class Finals:
    """Measures finalists; each judgement uses samples of its own only."""

    bench: Bench
    rounds: Rounds
    started: float
    """`time.monotonic()` of the search's start."""
    warm_ups: int = 2
    """Untimed launches of each arm before a judgement: a first launch loads its kernel."""
    _own_control: Entry | None = None
    _conditions: dict[str, Any] = field(default_factory=dict)

    def judge(
        self,
        entries: Sequence[Entry],
        stage: str,
        *,
        scope: str = GEMM,
        fewest: int = FEWEST_ROUNDS,
        most: int = MOST_ROUNDS,
    ) -> list[Result]:
        """Results of the finalists and of B0 itself, in the order given."""
        control, others = self._field(entries)
        arms = {CONTROL_ARM: control.prepared, **{e.name: e.prepared for e in others}}
        gpu, seen = self.rounds.gpu, len(self.rounds.glances)
        before = gpu.read()
        samples = self._measure(arms, scope, fewest, most)
        rounds = self.rounds.glances[seen:]
        self._conditions = (
            {"before": before, "after": gpu.read(), "fields": GLANCE, "rounds": rounds}
            if before
            else {}
        )
        judged = [control, *others]
        return [self._result(entry, stage, scope, samples, entry is control) for entry in judged]

    def settle(self, entries: Sequence[Entry], *, scope: str = GEMM) -> None:
        """Keep the device under the load of a judgement until the control's time stands still.

        A device that was idle runs at clocks that it cannot hold, where other configs win.
        """
        control, others = self._field(entries)
        arms = {CONTROL_ARM: control.prepared, **{e.name: e.prepared for e in others}}
        self.rounds.settle(self.bench.arms(arms, scope), CONTROL_ARM)

    def _field(self, entries: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
        """B0's entry and the others, each once."""
        known = {entry.config: entry for entry in entries}
        control = known.get(self.bench.control.candidate.config) or self._control()
        return control, [e for config, e in known.items() if config != control.config]

    def _control(self) -> Entry:
        if self._own_control is None:
            control = self.bench.control
            launch = self.bench.gemm.fingerprint(control.prepared)
            self._own_control = Entry(control.candidate, launch=launch, prepared=control.prepared)
        return self._own_control

    def _measure(
        self, prepared: dict[str, Any], scope: str, fewest: int, most: int
    ) -> list[Sample]:
        arms = self.bench.arms(prepared, scope)
        warm_up(arms, self.bench.gemm.synchronize, self.warm_ups)
        began = time.monotonic()
        samples = list(self.rounds.mirrored(arms, fewest))
        taken = fewest
        while taken < most and time.monotonic() - began < LONGEST:
            if _narrow(samples, list(prepared)):
                break
            samples += self.rounds.mirrored(arms, ROUNDS_AT_ONCE)
            taken += ROUNDS_AT_ONCE
        return samples

    def _result(
        self, entry: Entry, stage: str, scope: str, samples: Sequence[Sample], is_control: bool
    ) -> Result:
        arm = CONTROL_ARM if is_control else entry.name
        own = [s for s in samples if s.arm in (BASELINE_ARM, CONTROL_ARM, arm)]
        if not entry.checks:
            entry.checks = run_checks(self.bench, entry.prepared)
        parity = compare(
            self.bench.output_of(entry.prepared),
            self.bench.expected,
            self.bench.expected_sha256,
        )
        entry.exact = parity.exact
        return Result(
            candidate=entry.candidate,
            launch=entry.launch,
            scope=scope,
            stage=stage,
            baseline=self.bench.baseline.name,
            a_ms=_median(own, BASELINE_ARM),
            b0_ms=_median(own, CONTROL_ARM),
            b_ms=_median(own, arm),
            algorithm=compare_arms(own, CONTROL_ARM, arm),
            total=compare_arms(own, BASELINE_ARM, arm),
            wrapper=compare_arms(own, BASELINE_ARM, CONTROL_ARM),
            exact=parity.exact,
            checks=entry.checks,
            parity=parity,
            is_control=is_control,
            search_seconds=time.monotonic() - self.started,
            samples=own,
            conditions=self._conditions,
        )


def _narrow(samples: Sequence[Sample], names: Sequence[str]) -> bool:
    for name in names:
        if name != CONTROL_ARM:
            ratio = compare_arms(samples, CONTROL_ARM, name).ratio
            if (ratio.high - ratio.low) / 2 > NARROW * ratio.estimate:
                return False
    return True


def _median(samples: Sequence[Sample], arm: str) -> float:
    return median([sample.ms for sample in samples if sample.arm == arm])


def winner(results: Sequence[Result], *, exact: bool = True) -> Result | None:
    """The fastest result that is decided; B0 where none beats it.

    Ties within the noise go to less workspace, then to the smaller config, so that near-ties do
    not flip between runs.
    """
    eligible = [r for r in results if (r.counts if exact else r.sound)]
    control = next((r for r in eligible if r.is_control), None)
    fast = [r for r in eligible if not r.is_control and r.algorithm.verdict is Verdict.FAST]
    if not fast:
        return control
    best = max(fast, key=lambda r: r.gain)
    margin = max(best.algorithm.floor, NARROW)
    tied = [r for r in fast if r.gain * (1 + margin) >= best.gain]
    return min(tied, key=lambda r: (r.candidate.required_workspace, r.config))


def within_budgets(results: Sequence[Result], budgets: Sequence[int]) -> list[Result]:
    """For each workspace budget the fastest exact result, and the fastest that passed all checks:
    what may be asked for later.
    """
    chosen: dict[AlgorithmConfig, Result] = {}
    for budget in budgets:
        fitting = [r for r in results if r.candidate.required_workspace <= budget and r.checked]
        for eligible in (fitting, [r for r in fitting if r.exact]):
            if eligible:
                best = winner(eligible, exact=False) or max(eligible, key=lambda r: r.gain)
                chosen[best.config] = best
    return list(chosen.values())


def held(results: Sequence[Result], chosen: Result | None, *, exact: bool = True) -> Result | None:
    """What fresh samples say of what older ones chose; the fresh winner where it does not hold.

    Choosing among the fresh ones again would flatter: the best of several medians is luck in part.
    """
    if chosen is None:
        return None
    again = next((r for r in results if r.config == chosen.config), None)
    holds = again is not None and (again.is_control or again.algorithm.verdict is Verdict.FAST)
    if again is not None and holds and (again.counts if exact else again.sound):
        return again
    return winner(results, exact=exact)
