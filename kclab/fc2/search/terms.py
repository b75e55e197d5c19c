"""What a search is asked, what it tells while it runs, and what it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from kclab.fc2.backends import Candidate
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.problem import WORKSPACE_BUDGETS
from kclab.fc2.search.finals import Result
from kclab.fc2.search.pool import Entry

STAGES = ("heuristics", "neighbours", "space")
"""In the order that a search takes them."""


SCREENED = "screened"
"""What an event says that ends no stage: some more of the space was timed."""


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier runs of this boundary found under the same validity."""

    promising: Sequence[Candidate] = ()
    """Their fastest: they join the first stage."""
    seen: AbstractSet[AlgorithmConfig] = frozenset()
    """All that were tried: the space leaves them out."""


NOTHING_KNOWN = Known()


@dataclass(frozen=True, slots=True)
class Options:
    """How far a search goes."""

    budgets: Sequence[int] = WORKSPACE_BUDGETS
    """Workspace bytes to ask the heuristic about."""
    wanted: int = 32
    """Algorithms to ask for per budget; the library may return fewer."""
    seconds: float = 60.0
    """Time budget; the first stage is always finished."""
    until: str = "space"
    """The last stage."""
    exhaustive: bool = False
    """Time every distinct launch, without a race."""
    limit: int | None = None
    """Distinct launches to try at most, the heuristics' own first."""
    seed: int = 0
    """Of the shuffled orders."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a search just did; for whoever watches."""

    stage: str
    seconds: float
    configs: int
    launches: int
    text: str
    leaders: Sequence[tuple[str, float, bool | None]] = ()
    """(config, control / candidate, exact), fastest first."""


class Sink(Protocol):
    """Where a search's findings go, stage by stage."""

    def enumerated(self, budget: int, requested: int, returned: int, error: str | None) -> None:
        """One answer of the heuristic."""
        ...

    def entries(self, entries: Sequence[Entry]) -> None:
        """Configs that were tried; called again for those whose state changed."""
        ...

    def results(self, results: Sequence[Result]) -> None:
        """Finalists that were judged."""
        ...


@dataclass(slots=True)
class Outcome:
    """What a search found."""

    exact: Result | None = None
    """The fastest config whose bytes equal the baseline's; B0 where none is faster."""
    any: Result | None = None
    """The fastest one that computes the product at all."""
    results: list[Result] = field(default_factory=list)
    stages: dict[str, str] = field(default_factory=dict)
    """What each stage brought, in words."""
    complete: bool = False
    """Whether the whole space was seen."""
