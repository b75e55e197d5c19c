"""Statistics of timings: paired ratios, their confidence intervals, noise floors and verdicts.

The unit is the pair: control and candidate timed next to each other in one round, so that what
drifts (clocks, temperature, a neighbour) hits both. A round's ratio is control / candidate, above
1 where the candidate is faster; rounds are summarised by their median, which no outlier moves
far. Confidence intervals are order statistics: they assume nothing about the distribution but that
the rounds are independent. Standard library only; times in any one unit. Samples that were not
taken side by side: `kclab.core.unpaired`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

MIN_PAIRS = 6
"""Below this no order statistic reaches 95 %: two-sided coverage is 1 - 2^(1-n), 93.75 % at 5."""

CONFIDENCE = 0.95

MARGIN = 0.005
"""Differences below 0.5 % decide nothing, however well they are measured."""

SAMENESS_LIMIT = 0.02
"""Noise beyond 2 % can hide a difference, so it never proves sameness."""


class Verdict(StrEnum):
    """What a comparison shows, the candidate against the control."""

    FAST = "FAST"
    """The whole interval lies above the noise."""
    SAME = "SAME"
    """The whole interval lies within the noise."""
    SLOW = "SLOW"
    """The whole interval lies below the noise."""
    UNDECIDED = "UNDECIDED"
    """Fewer than MIN_PAIRS pairs, or an interval that reaches over an edge of the noise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the confidence interval around it."""

    estimate: float
    low: float
    high: float
    coverage: float
    """The probability that such an interval holds the truth, at least; 0 where n is too small."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed execution: a `timing_sample` row."""

    round: int
    position: int
    """Place within the round, from 0."""
    arm: str
    ms: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate arm against a control arm, over the rounds that hold both."""

    ratio: Interval
    """Control / candidate; above 1 is faster."""
    pairs: int
    floor: float
    """A/A noise floor as a relative difference: 0.004 is 0.4 %."""
    drift: float
    """Relative change of the control from the first round to the last; 0.11 is +11 %."""
    outliers: int
    """Rounds whose ratio lies beyond 5 scaled MADs; they are kept."""
    verdict: Verdict


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return float(statistics.median(values))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics (Hyndman & Fan 1996, type 7; R's default)."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def scaled_mad(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation: the standard deviation of a normal sample."""
    centre = median(values)
    return 1.4826 * median([abs(value - centre) for value in values])


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median with its distribution-free confidence interval [x_(k), x_(n+1-k)].

    The number of values below the true median is Binomial(n, 1/2), so the interval covers it with
    1 - 2 P(X <= k - 1); k is the largest that keeps this at or above `confidence` (Conover,
    Practical Nonparametric Statistics, 3.2). With fewer than MIN_PAIRS values the interval is
    unbounded and its coverage 0. Raises ValueError for no values.
    """
    ordered = sorted(values)
    rank, coverage = _median_rank(len(ordered), confidence)
    if rank == 0:
        return Interval(median(ordered), -math.inf, math.inf, 0.0)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank], coverage)


@lru_cache(maxsize=256)
def _median_rank(count: int, confidence: float) -> tuple[int, float]:
    """(k, coverage) of the narrowest symmetric interval that covers enough; (0, 0) for none."""
    tail, best = 0.0, (0, 0.0)
    for rank in range(1, count // 2 + 1):
        tail += math.exp(_log_binomial(count, rank - 1) - count * math.log(2))
        if 1 - 2 * tail < confidence:
            break
        best = (rank, 1 - 2 * tail)
    return best


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def ratio_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """`median_interval` of positive ratios; the unbounded interval is (0, inf).

    The estimate is the median on the log scale, so that swapping the arms inverts it exactly.
    """
    logs = median_interval([math.log(ratio) for ratio in ratios], confidence)
    high = math.exp(logs.high) if math.isfinite(logs.high) else math.inf
    return Interval(math.exp(logs.estimate), math.exp(logs.low), high, logs.coverage)


def round_ratios(samples: Iterable[Sample], control: str, candidate: str) -> list[float]:
    """control / candidate for each round that has both, in order of round.

    Several samples of an arm in a round are averaged geometrically: in an ABBA round a drift that
    is linear in log time then cancels exactly.
    """
    wanted = (sample for sample in samples if sample.arm in (control, candidate))
    if control == candidate:
        return [1.0] * len({sample.round for sample in wanted})
    return ratios_by_arm(wanted, control).get(candidate, [])


def ratios_by_arm(samples: Iterable[Sample], control: str) -> dict[str, list[float]]:
    """`round_ratios` of every arm but the control, in one pass over the samples."""
    rounds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        rounds[sample.round][sample.arm].append(math.log(sample.ms))
    ratios: dict[str, list[float]] = defaultdict(list)
    for _, arms in sorted(rounds.items()):
        if control in arms:
            own = statistics.fmean(arms.pop(control))
            for arm, logs in arms.items():
                ratios[arm].append(math.exp(own - statistics.fmean(logs)))
    return dict(ratios)


def self_ratios(samples: Iterable[Sample], arm: str) -> list[float]:
    """A/A ratios of one arm: two neighbouring samples of it, what identical code shows.

    Pairs lie within a round where the arm ran twice there (ABBA), else across neighbouring rounds.
    Every second ratio is inverted, so that a steady drift widens their spread but does not move
    their median.
    """
    own = sorted((s for s in samples if s.arm == arm), key=lambda s: (s.round, s.position))
    rounds: dict[int, list[float]] = defaultdict(list)
    for sample in own:
        rounds[sample.round].append(sample.ms)
    pairs = [(times[0], times[-1]) for times in rounds.values() if len(times) > 1]
    if len(pairs) < MIN_PAIRS:
        pairs = list(pairwise(sample.ms for sample in own))
    return [a / b if turn % 2 == 0 else b / a for turn, (a, b) in enumerate(pairs)]


def noise_floor(ratios: Sequence[float]) -> float:
    """The relative difference that identical code shows, from its A/A ratios.

    The end of the A/A median's confidence interval that is farther from 1; infinite below
    MIN_PAIRS ratios.
    """
    interval = ratio_interval(ratios) if ratios else None
    if interval is None or not interval.coverage:
        return math.inf
    return max(interval.high, 1 / interval.low) - 1


def drift(times: Sequence[float]) -> float:
    """Relative change over a series in order, by the Theil-Sen slope of log time.

    The slope is the median over all pairs of (log t_j - log t_i) / (j - i) (Sen 1968); up to 29 %
    of outliers leave it in place. Long series are thinned to 200 points. 0 below 3 points.
    """
    if len(times) < 3:
        return 0.0
    step = -(-len(times) // 200)
    points = [(i, math.log(times[i])) for i in range(0, len(times), step)]
    slopes = [
        (later - earlier) / (j - i)
        for n, (i, earlier) in enumerate(points)
        for j, later in points[n + 1 :]
    ]
    return math.expm1(median(slopes) * (len(times) - 1))


def count_outliers(ratios: Sequence[float]) -> int:
    """How many ratios lie beyond 5 scaled MADs of their median; timings that are to be looked at.

    A spread of 0 (a coarse clock) makes no outliers.
    """
    spread, centre = scaled_mad(ratios), median(ratios)
    return sum(abs(ratio - centre) > 5 * spread for ratio in ratios) if spread else 0


def judge(ratio: Interval, floor: float, margin: float = MARGIN) -> Verdict:
    """The verdict on a ratio's interval against the noise floor or the margin, the larger one.

    Sameness is held to SAMENESS_LIMIT at most, however noisy the machine is.
    """
    edge = 1 + max(floor, margin)
    same = 1 + max(min(floor, SAMENESS_LIMIT), margin)
    if not ratio.coverage or math.isinf(edge):
        return Verdict.UNDECIDED
    if ratio.low > edge:
        return Verdict.FAST
    if ratio.high < 1 / edge:
        return Verdict.SLOW
    inside = ratio.low >= 1 / same and ratio.high <= same
    return Verdict.SAME if inside else Verdict.UNDECIDED


def compare_arms(
    samples: Sequence[Sample], control: str, candidate: str, *, floor: float | None = None
) -> Comparison:
    """The candidate against the control, from interleaved rounds.

    `floor` is the A/A noise floor where one was measured apart; else it comes from the control's
    own samples. Raises ValueError where no round holds both arms.
    """
    ratios = round_ratios(samples, control, candidate)
    if not ratios:
        raise ValueError(f"no round holds both {control} and {candidate}")
    ratio = ratio_interval(ratios)
    noise = noise_floor(self_ratios(samples, control)) if floor is None else floor
    own = sorted((s for s in samples if s.arm == control), key=lambda s: (s.round, s.position))
    return Comparison(
        ratio=ratio,
        pairs=len(ratios),
        floor=noise,
        drift=drift([sample.ms for sample in own]),
        outliers=count_outliers(ratios),
        verdict=judge(ratio, noise),
    )
