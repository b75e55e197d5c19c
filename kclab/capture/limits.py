"""What a capture run may take: captures per definition and axes, bytes, and free disk."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kclab.capture.control import ControlFolder
from kclab.capture.plan import CapturePlan
from kclab.core.definition import Definition
from kclab.core.errors import KclabError


class LimitReached(KclabError):
    """The run has captured as much as it may; the message is the counted reason."""


class Limits:
    """The run's limits as one process sees them; the control folder holds the shared counts."""

    def __init__(self, plan: CapturePlan, control: ControlFolder):
        self._plan = plan
        self._control = control
        self._full: set[tuple[str, frozenset[tuple[str, int]]]] = set()
        self._axes_reason = f"over --max-per-axes {plan.max_per_axes}"
        self._bytes_reason = f"over --max-bytes {plan.max_bytes}"

    def full(self, definition: str, axes: Mapping[str, int] | None) -> str | None:
        """Why no more of a definition at these axes is taken, as far as is known here."""
        if axes is not None and (definition, frozenset(axes.items())) in self._full:
            return self._axes_reason
        return None

    def claim(self, definition: Definition, axes: Mapping[str, int]) -> str | None:
        """Take a place under --max-per-axes; None where that has no limit.

        Raises LimitReached when all are taken.
        """
        limit = self._plan.max_per_axes
        if limit is None:
            return None
        variable = {axis: axes[axis] for axis in definition.var_axes if axis in axes}
        claim = self._control.claim(definition.name, json.dumps(variable, sort_keys=True), limit)
        if claim is None:
            for known in (axes, variable):
                self._full.add((definition.name, frozenset(known.items())))
            raise LimitReached(self._axes_reason)
        return claim

    def reserve(self, nbytes: int, *, first: bool) -> None:
        """Take `nbytes` of the run's allowance.

        The first call of its axes stands for all those that may follow: it is refused when they
        would not fit on the disk. Raises LimitReached.
        """
        expected = self._expected(nbytes) if first else nbytes
        free = self._control.free_bytes()
        if expected > free:
            raise LimitReached(
                f"not enough disk space: about {expected:,} bytes to come, {free:,} may be used"
            )
        if not self._control.reserve(nbytes, self._plan.max_bytes):
            raise LimitReached(self._bytes_reason)

    def _expected(self, nbytes: int) -> int:
        """Bytes of all the captures that one of `nbytes` stands for, within the allowance."""
        expected = nbytes * (self._plan.max_per_axes or 1)
        if self._plan.max_bytes is None:
            return expected
        return min(expected, max(nbytes, self._plan.max_bytes - self._control.reserved()))

    def give_back(self, nbytes: int) -> None:
        """Return bytes of a capture that came to nothing."""
        self._control.reserve(-nbytes, self._plan.max_bytes)
