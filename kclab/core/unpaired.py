"""Two samples that were not taken side by side: another session's, or an imported one's.

These tell whether two sessions differ, not why: clocks and temperatures differ with them. Where
pairs can be had, use `kclab.core.stats`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kclab.core.stats import CONFIDENCE, MIN_PAIRS, Interval, median


def shift_interval(
    control: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """control / candidate of two unpaired samples: Hodges-Lehmann estimate and Moses interval.

    The estimate is the median of all n x m ratios; the interval is their k-th smallest and
    largest, k from the Mann-Whitney U distribution by its normal approximation
    k = nm/2 - z sqrt(nm (n+m+1) / 12) (Hollander, Wolfe & Chicken, 4.3). Each side is thinned to
    300 values. Coverage is 0, and the interval unbounded, where either side has fewer than
    MIN_PAIRS values.
    """
    first, second = _thinned(control), _thinned(candidate)
    ratios = sorted(a / b for a in first for b in second)
    n, m = len(first), len(second)
    if min(n, m) < MIN_PAIRS:
        return Interval(median(ratios), 0.0, math.inf, 0.0)
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    rank = max(1, math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12)))
    return Interval(median(ratios), ratios[rank - 1], ratios[-rank], confidence)


def _thinned(values: Sequence[float], most: int = 300) -> Sequence[float]:
    step = -(-len(values) // most)
    return values[::step] if step > 1 else values
