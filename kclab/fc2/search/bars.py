"""What a launch of the space has to beat: the best exact ratio, and the best of any bytes."""

from __future__ import annotations

from collections.abc import Sequence

from kclab.fc2.search.pool import Entry, Pool


class Bars:
    """The ratios of the fastest exact config and of the fastest one that passed all checks."""

    def __init__(self, pool: Pool):
        self._pool = pool
        known = list(pool.valid())
        self._exact = max((e.ratio or 0.0 for e in known if e.counts), default=0.0)
        self._any = max((e.ratio or 0.0 for e in known if e.checked), default=0.0)

    @property
    def lowest(self) -> float:
        """What is slower beats nothing."""
        return min(self._exact, self._any)

    def raise_by(self, ordered: Sequence[Entry]) -> None:
        """Examine what looks faster than the best of its kind, fastest first.

        A wrong one raises no bar.
        """
        for entry in ordered:
            ratio = entry.ratio or 0.0
            if ratio <= self.lowest:
                return
            if ratio > self._any or self._pool.same(entry):
                self._pool.examine(entry)
            if entry.counts:
                self._exact = max(self._exact, ratio)
            if entry.checked:
                self._any = max(self._any, ratio)
