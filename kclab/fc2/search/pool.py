"""The configs that a search knows, folded by what they launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kclab.fc2.backends import Candidate, Launch, Prepared, Refused
from kclab.fc2.bench import Bench
from kclab.fc2.checks import CheckResult, run_checks, sound
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.parity import output_class, same_bytes


@dataclass(slots=True)
class Entry:
    """One config, and how far it came. Only entries with status `valid` are raced."""

    candidate: Candidate
    status: str = "valid"
    """`valid`, `folded`, `refused` or `failed`."""
    reason: str | None = None
    launch: Launch | None = None
    prepared: Any = None
    folded_into: Entry | None = None
    """The entry that launches the same, where this one was folded."""
    output_class: str | None = None
    exact: bool | None = None
    """Same bytes as the accepted baseline's; None until asked."""
    ratio: float | None = None
    """Control / candidate in the race; above 1 is faster."""
    samples: int = 0
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def config(self) -> AlgorithmConfig:
        """Its nine numbers."""
        return self.candidate.config

    @property
    def name(self) -> str:
        """What its samples are called."""
        return self.config.text

    @property
    def sound(self) -> bool:
        """Whether it was examined and computes the product."""
        return self.status == "valid" and bool(self.checks) and sound(self.checks)

    @property
    def counts(self) -> bool:
        """Whether it was examined, equals the baseline and failed no check."""
        return self.checked and bool(self.exact)

    @property
    def checked(self) -> bool:
        """Whether it was examined and failed no check, whatever its bytes."""
        return self.sound and all(check.passed for check in self.checks)


def in_parts(candidates: Sequence[Candidate], size: int) -> Iterator[Sequence[Candidate]]:
    """Slices of at most `size`."""
    for begin in range(0, len(candidates), size):
        yield candidates[begin : begin + size]


class Pool:
    """Admits candidates: each config once, each launch once."""

    def __init__(self, bench: Bench, limit: int | None = None):
        """`limit`: distinct launches that are taken at most."""
        self._bench = bench
        self._limit = limit
        self.entries: dict[AlgorithmConfig, Entry] = {}
        self._launches: dict[int, Entry] = {}

    @property
    def launches(self) -> int:
        """Distinct launches known."""
        return len(self._launches)

    @property
    def full(self) -> bool:
        """Whether as many launches are known as may be."""
        return self._limit is not None and self.launches >= self._limit

    def valid(self) -> Iterator[Entry]:
        """Entries that can be raced."""
        return (entry for entry in self.entries.values() if entry.status == "valid")

    def admit(self, candidates: Iterable[Candidate]) -> list[Entry]:
        """Fold what is new and run it once; returns the new entries, whatever their status.

        The first run loads the kernel, and shows a config that is accepted and then refused.
        """
        fresh = self.fold(candidates)
        for entry in fresh:
            if entry.status == "valid":
                self.try_out(entry)
        return fresh

    def fold(self, candidates: Iterable[Candidate]) -> list[Entry]:
        """Entries for what is new, folded by launch; nothing runs."""
        fresh: dict[AlgorithmConfig, Entry] = {}
        for candidate in candidates:
            if self._limit is not None and self.launches + len(fresh) >= self._limit:
                break
            if candidate.config not in self.entries and candidate.config not in fresh:
                fresh[candidate.config] = Entry(candidate)
        self.entries.update(fresh)
        asked = [entry for entry in fresh.values() if self._fits(entry)]
        found = self._bench.gemm.launches([entry.config for entry in asked])
        for entry, prepared in zip(asked, found, strict=True):
            if isinstance(prepared, Refused):
                entry.status, entry.reason = "refused", str(prepared)
            else:
                self._settle(entry, prepared)
        return list(fresh.values())

    def _fits(self, entry: Entry) -> bool:
        needed = entry.candidate.required_workspace
        if needed > self._bench.gemm.workspace_bytes:
            entry.status, entry.reason = "refused", f"needs {needed} bytes of workspace"
        return entry.status == "valid"

    def _settle(self, entry: Entry, prepared: Prepared) -> None:
        entry.launch = prepared.launch
        first = self._launches.setdefault(prepared.launch.fold, entry)
        if first is entry:
            entry.prepared = prepared.algorithm
        else:
            entry.status, entry.reason = "folded", f"launches the same as {first.name}"
            entry.folded_into = first

    def try_out(self, entry: Entry) -> None:
        """Run an entry once, untimed; one that refuses says why."""
        try:
            self._bench.gemm.run(entry.prepared)
        except Refused as refusal:
            entry.status, entry.reason = "refused", str(refusal)

    def examine(self, entry: Entry) -> None:
        """Find an entry's output class, whether it equals the baseline's bytes, and its checks.

        Done once, for entries that are fast enough to matter.
        """
        if entry.checks or entry.status != "valid":
            return
        self.same(entry)
        try:
            if entry.exact is not None:
                entry.checks = run_checks(self._bench, entry.prepared)
        except Refused as refusal:
            entry.status, entry.reason = "failed", str(refusal)

    def same(self, entry: Entry) -> bool:
        """Whether an entry's bytes are the baseline's: one run, far cheaper than the checks."""
        if entry.exact is None and entry.status == "valid":
            try:
                output = self._bench.output_of(entry.prepared)
                entry.output_class = output_class(output)
                entry.exact = same_bytes(output, self._bench.expected)
            except Refused as refusal:
                entry.status, entry.reason = "failed", str(refusal)
        return bool(entry.exact)
