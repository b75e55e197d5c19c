"""What a replay found, added up while the verdicts fall."""

from __future__ import annotations

from dataclasses import dataclass, field

from kclab.core.errors import ExitCode
from kclab.db.verdicts import OutputVerdict, ReplayRow

KEPT_FAILURES = 1000
"""Failed and broken verdicts kept for showing; all of them are rows."""


@dataclass(slots=True)
class DefinitionTally:
    """The verdicts on one definition's workloads."""

    definition: str
    passed: int = 0
    failed: int = 0
    error: int = 0
    skipped: int = 0
    warned: int = 0
    """Passes that prove little."""
    seconds: float = 0.0
    max_abs: float | None = None
    """The largest absolute error of any output."""
    relative_rms: float | None = None
    """The largest relative RMS error of any output."""
    oracle: dict[str, int] = field(default_factory=dict)
    """How often each oracle verdict fell."""

    def add(self, row: ReplayRow) -> None:
        """Count one verdict."""
        setattr(self, row.status, getattr(self, row.status) + 1)
        self.warned += row.warning is not None
        self.seconds += row.seconds or 0.0
        for output in row.outputs:
            self._add_errors(output)
        for oracle in row.oracle:
            self.oracle[oracle.verdict] = self.oracle.get(oracle.verdict, 0) + 1

    def _add_errors(self, output: OutputVerdict) -> None:
        if output.max_abs is not None:
            self.max_abs = max(self.max_abs or 0.0, output.max_abs)
        if output.relative_rms is not None:
            self.relative_rms = max(self.relative_rms or 0.0, output.relative_rms)


@dataclass(slots=True)
class ReplaySummary:
    """A finished replay."""

    run: str = ""
    """The run's uuid."""
    run_id: int = 0
    devices: list[str] = field(default_factory=list)
    """Where workloads were judged, in the order met."""
    total: int = 0
    definitions: dict[str, DefinitionTally] = field(default_factory=dict)
    failures: list[ReplayRow] = field(default_factory=list)
    """The first KEPT_FAILURES verdicts that are `failed` or `error`."""
    skipped: dict[str, list[ReplayRow]] = field(default_factory=dict)
    """The first skipped rows of each reason."""
    warned: list[ReplayRow] = field(default_factory=list)
    """The first passes that prove little."""
    lacking: int = 0
    """How many are not judged for what this machine lacks (see `Decided.lacking`)."""
    notes: list[str] = field(default_factory=list)
    """What a person should know besides: torn lines, a report that was not written."""

    def add(self, row: ReplayRow, lacking: bool) -> None:
        """Count one verdict."""
        tally = self.definitions.setdefault(row.definition, DefinitionTally(row.definition))
        tally.add(row)
        if row.device and row.status != "skipped" and row.device not in self.devices:
            self.devices.append(row.device)
        if row.status in ("failed", "error"):
            self.lacking += lacking
            if len(self.failures) < KEPT_FAILURES:
                self.failures.append(row)
        elif row.status == "skipped":
            rows = self.skipped.setdefault(row.reason or "", [])
            if len(rows) < KEPT_FAILURES:
                rows.append(row)
        elif row.warning and len(self.warned) < KEPT_FAILURES:
            self.warned.append(row)

    def count(self, status: str) -> int:
        """How many verdicts have this status."""
        return sum(getattr(tally, status) for tally in self.definitions.values())

    @property
    def device(self) -> str:
        """All devices that judged something, joined; `no device` where none did."""
        return ", ".join(sorted(self.devices)) or "no device"

    @property
    def exit_code(self) -> ExitCode:
        """What the outcome is to the shell, and in the run's row."""
        codes = {"passed": ExitCode.OK, "empty": ExitCode.NOTHING}
        failed = ExitCode.ENVIRONMENT if self.only_lacking else ExitCode.CHECK_FAILED
        return codes.get(self.status, failed)

    @property
    def only_lacking(self) -> bool:
        """Whether nothing kept it from passing but what this machine lacks."""
        return 0 < self.lacking == self.count("failed") + self.count("error")

    @property
    def status(self) -> str:
        """What the run ends with: `passed`, `failed`, or `empty` when nothing could be judged."""
        if self.count("failed") or self.count("error"):
            return "failed"
        return "passed" if self.count("passed") else "empty"

    @property
    def sentence(self) -> str:
        """`11 of 12 passed, 1 failed, 3 skipped`."""
        judged = self.total - self.count("skipped")
        parts = [f"{self.count('passed')} of {judged} passed"]
        for status in ("failed", "error", "skipped"):
            if number := self.count(status):
                parts.append(f"{number} {status}")
        return ", ".join(parts)
