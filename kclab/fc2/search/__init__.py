"""The anytime search: an answer after the heuristics' own candidates, then wider while time lasts.

heuristics  what cuBLASLt itself ranks, over all workspace budgets
neighbours  one knob away from the best of those, as long as that brings something
space       every config that the library accepts, folded by launch, the plainest first
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence

from kclab.fc2.backends import Candidate, Refused
from kclab.fc2.bench import Bench
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gpu import NO_GPU, Watcher
from kclab.fc2.search.bars import Bars
from kclab.fc2.search.finals import Finals, Result, held, winner, within_budgets
from kclab.fc2.search.plan import Order, Plan, Shuffled
from kclab.fc2.search.pool import Entry, Pool, in_parts
from kclab.fc2.search.race import HEATS, Heat, Race
from kclab.fc2.search.terms import (
    NOTHING_KNOWN,
    SCREENED,
    STAGES,
    Event,
    Known,
    Options,
    Outcome,
    Sink,
)
from kclab.fc2.timing import Rounds

__all__ = ["STAGES", "Event", "Known", "Options", "Outcome", "Search", "Sink", "search"]

PORTION = 192
"""Configs of the space that are looked at in one go."""
NEAR, MORE_LOOKS = 1.25, 2
"""A launch of the space that looks slower than the best known by more than this is timed once,
others so many times more: one sample is seldom off by a quarter."""
SECOND_LOOK, SECOND_SLACK, SECOND_ROUNDS = 256, 1.06, 3
"""So many launches, not slower than the best known by more than this, are timed so often again
before they are raced: the best of thousands after three samples is mostly luck."""
SCREEN_SLACK = 1.04
"""How much slower than the best of the second look a launch may be to be raced."""

MOST_GLANCES = 2_000
LISTING = 0.3
"""Share of a race's time for the space that its listing may take, the plainest configs first."""
LEADERS = 8
"""Entries that whoever watches is shown."""
CONTENDERS = 24
"""Entries of a stage that may wait for the finals."""
RESERVE = 0.15
"""Share of the time budget that is kept for judging finalists, and at least what settles clocks."""


class Search:
    """One search on one bench."""

    def __init__(
        self,
        bench: Bench,
        options: Options,
        sink: Sink,
        watch: Callable[[Event], None] = lambda _event: None,
        known: Known = NOTHING_KNOWN,
        gpu: Watcher = NO_GPU,
    ):
        self.bench = bench
        self.options = options
        self._sink = sink
        self._watch = watch
        self._known = known
        self._started = time.monotonic()
        rounds = Rounds(bench.clock, random.Random(options.seed), gpu=gpu)
        self._rounds = rounds
        self.pool = Pool(bench, options.limit)
        self._race = Race(bench, self.pool, rounds)
        self.finals = Finals(bench, rounds, self._started)
        self.outcome = Outcome()
        self._leaders: list[Entry] = []
        self._bars = Bars(self.pool)
        self._listed = False
        self._judged: list[Result] = []

    def run(self) -> Outcome:
        """Search until the stages or the time end; the outcome stands after each stage."""
        self._heuristics()
        if self._goes_on("neighbours"):
            self._neighbours()
        if self._goes_on("space"):
            self._space()
        self._final()
        return self.outcome

    def screening(self) -> list[tuple[int | None, ...]]:
        """`GLANCE` after each series and heat: at most `MOST_GLANCES`, evenly taken."""
        seen = self._rounds.screened
        return seen[:: -(-len(seen) // MOST_GLANCES)] if seen else []

    def _goes_on(self, stage: str) -> bool:
        wanted = STAGES.index(stage) <= STAGES.index(self.options.until)
        return wanted and not self.pool.full and time.monotonic() < self._search_ends

    @property
    def _search_ends(self) -> float:
        seconds = self.options.seconds
        settling = min(self.bench.clock.settles, seconds / 2)
        return self._started + min((1 - RESERVE) * seconds, seconds - settling)

    def _heuristics(self) -> None:
        self._rounds.deadline = self._search_ends
        found: list[Candidate] = []
        for budget in self.options.budgets:
            found += self._ask(budget)
        known = self._known.promising
        fresh = self.pool.admit([self.bench.control.candidate, *found, *known])
        self._sink.entries(fresh)
        left = self._race.run(fresh, HEATS)
        self._judge("heuristics", left, fresh)

    def _ask(self, budget: int) -> list[Candidate]:
        wanted = self.options.wanted
        try:
            found = self.bench.gemm.enumerate(budget, wanted)
        except Refused as refusal:
            self._sink.enumerated(budget, wanted, 0, str(refusal))
            return []
        self._sink.enumerated(budget, wanted, len(found), None)
        return found

    def _neighbours(self) -> None:
        self._rounds.deadline = self._search_ends
        seen: list[Entry] = []
        centres = self._centres()
        visited: set[AlgorithmConfig] = set()
        while centres and not self.pool.full and not self._rounds.late():
            visited.update(entry.config for entry in centres)
            near = [c for entry in centres for c in self.bench.gemm.neighbours(entry.config)]
            fresh = self._admit(near)
            self._sink.entries(fresh)
            seen += fresh
            self._race.run(fresh, HEATS[:2])
            centres = [entry for entry in self._centres() if entry.config not in visited]
        left = self._race.run(self._contenders(seen), HEATS[2:])
        self._judge("neighbours", left, seen)

    def _centres(self) -> list[Entry]:
        """The fastest entry whose bytes are right, and the fastest at all."""
        ordered = self._by_speed(self.pool.valid())
        exact = [entry for entry in ordered if entry.counts][:1]
        ordered = [entry for entry in ordered if entry.sound]
        return list({id(entry): entry for entry in (*ordered[:1], *exact)}.values())

    def _space(self) -> None:
        self._rounds.deadline = self._search_ends
        self._bars = Bars(self.pool)
        order = self._order()
        seen: list[Entry] = []
        while order.left and not self.pool.full and not self._rounds.late():
            fresh = self.pool.fold(order.next(PORTION))
            self._screen(fresh)
            seen += fresh
            for entry in fresh:
                ratio = (entry.folded_into or entry).ratio
                if ratio:
                    order.observe(entry.config, ratio)
        self.outcome.complete = self._listed and not order.left
        left = self._race.run(self._second_look(seen), HEATS)
        more = "" if self.outcome.complete else f"; ended with {order.left} configs untried"
        changed = [e for e in seen if e.samples > 1 + MORE_LOOKS or e.exact is not None]
        self._judge("space", left, seen, more, changed)

    def _order(self) -> Order:
        """Every valid config that neither this search nor an earlier one tried."""
        found: list[Candidate] = []
        now = time.monotonic()
        ends = now + (1.0 if self.options.exhaustive else LISTING) * (self._search_ends - now)
        for portion in self.bench.gemm.space():
            found += [candidate for candidate in portion if not self._met(candidate.config)]
            if time.monotonic() >= ends:
                break
        else:
            self._listed = True
        if self.options.exhaustive:
            return Shuffled(found, self._rounds.random)
        timed = [(entry.config, entry.ratio) for entry in self.pool.valid() if entry.ratio]
        return Plan(found, timed, self._rounds.random)

    def _met(self, config: AlgorithmConfig) -> bool:
        return config in self.pool.entries or config in self._known.seen

    def _screen(self, fresh: Sequence[Entry]) -> None:
        """Look at new launches once, again at those near the best; examine what may beat it."""
        self._race.time(fresh, 1)
        ordered = self._by_speed(e for e in fresh if e.status == "valid")
        near = [e for e in ordered if (e.ratio or 0.0) * NEAR >= self._bars.lowest]
        self._race.time(near, MORE_LOOKS)
        ordered = self._by_speed(e for e in fresh if e.status == "valid")
        self._bars.raise_by(ordered)
        self._sink.entries(fresh)
        self._leaders = self._by_speed([*self._leaders, *ordered[:LEADERS]])[:LEADERS]
        self._tell("space", SCREENED)

    def _second_look(self, seen: Sequence[Entry]) -> list[Entry]:
        """The fastest of the space, timed again, then examined from the top down."""
        bar = self._bars.lowest
        ordered = self._by_speed(entry for entry in seen if entry.status == "valid")
        again = [e for e in ordered if (e.ratio or 0.0) * SECOND_SLACK >= bar][:SECOND_LOOK]
        self._race.time(again, SECOND_ROUNDS)
        return self._race.cut(again, Heat(0, SCREEN_SLACK, CONTENDERS))

    def _admit(self, candidates: Iterable[Candidate]) -> list[Entry]:
        fresh: list[Entry] = []
        for part in in_parts(list(candidates), 16):
            if self._rounds.late():
                break
            fresh += self.pool.admit(part)
        return fresh

    def _contenders(self, seen: Sequence[Entry]) -> list[Entry]:
        ordered = self._by_speed(entry for entry in seen if entry.sound)
        exact = [entry for entry in ordered if entry.counts][:CONTENDERS]
        return list({id(e): e for e in (*ordered[:CONTENDERS], *exact)}.values())

    def _by_speed(self, entries: Iterable[Entry]) -> list[Entry]:
        timed = [entry for entry in entries if entry.ratio is not None]
        return sorted(timed, key=lambda entry: entry.ratio or 0.0, reverse=True)

    def _finalists(self) -> list[Entry]:
        """Per budget the fastest exact entry that fits; the fastest checked and sound ones."""
        ordered = self._by_speed(entry for entry in self.pool.valid() if entry.sound)
        exact = [entry for entry in ordered if entry.counts]
        chosen = exact[:2] + ordered[:1] + [entry for entry in ordered if entry.checked][:1]
        for budget in sorted({*self.options.budgets, self.bench.gemm.workspace_bytes}):
            chosen += [e for e in exact if e.candidate.required_workspace <= budget][:1]
        return list({entry.config: entry for entry in chosen}.values())

    def _judge(
        self,
        stage: str,
        left: Sequence[Entry],
        seen: Sequence[Entry],
        more: str = "",
        changed: Sequence[Entry] | None = None,
    ) -> None:
        """Judge a stage's finalists; `changed` are those whose rows are behind, else all seen."""
        before = self.outcome.exact.gain if self.outcome.exact else 1.0
        self._sink.entries(_raced(seen if changed is None else changed))
        self._rounds.deadline = float("inf")
        results = self.finals.judge(self._finalists(), stage)
        self._sink.results(results)
        self._judged = results
        self.outcome.results += results
        self.outcome.exact, self.outcome.any = winner(results), winner(results, exact=False)
        launches = sum(entry.status == "valid" for entry in seen)
        after = self.outcome.exact.gain if self.outcome.exact else 1.0
        gained = f"{(after / before - 1) * 100:+.1f} %"
        text = f"{len(seen)} configs, {launches} launches, {len(left)} raced to the end, {gained}"
        self.outcome.stages[stage] = text + more
        self._tell(stage, text + more)

    def _final(self) -> None:
        """Measure the winners again: the best of many noisy medians flatters itself."""
        self._rounds.deadline = float("inf")
        before = self.outcome
        budgets = sorted({*self.options.budgets, self.bench.gemm.workspace_bytes})
        chosen = [r for r in (before.exact, before.any) if r]
        chosen += within_budgets(self._judged, budgets)
        entries = [self.pool.entries[c] for c in dict.fromkeys(r.config for r in chosen)]
        self.finals.settle(entries)
        results = self.finals.judge(entries, "final")
        self._sink.results(results)
        self.outcome.results += results
        self.outcome.exact = held(results, before.exact)
        self.outcome.any = held(results, before.any, exact=False)
        self._tell("final", "measured again on fresh samples")

    def _tell(self, stage: str, text: str) -> None:
        if text != SCREENED:
            self._leaders = self._by_speed(self.pool.valid())[:LEADERS]
        leaders = [(e.name, e.ratio or 0.0, e.exact) for e in self._leaders]
        seconds = time.monotonic() - self._started
        entries = len(self.pool.entries)
        self._watch(Event(stage, seconds, entries, self.pool.launches, text, leaders))


def _raced(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose rows change while they are raced; the others were written when admitted."""
    return [entry for entry in entries if entry.status in ("valid", "failed")]


def search(
    bench: Bench,
    options: Options,
    sink: Sink,
    watch: Callable[[Event], None] = lambda _event: None,
    known: Known = NOTHING_KNOWN,
) -> Outcome:
    """Find the fastest exact and the fastest sound config of a bench."""
    return Search(bench, options, sink, watch, known).run()
