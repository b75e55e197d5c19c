"""What a foreign dataset holds, as plain objects: read, checked row by row, nothing opened yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from kclab.core.definition import Definition


@dataclass(slots=True)  # not frozen: a dataset makes thousands, and frozen ones cost twice as much
class FileTensor:
    """A tensor in a safetensors file of the root."""

    location: str
    """Absolute path; it lies inside the root."""
    key: str
    text: str
    """The path as the row writes it, for messages and round trips."""
    claim: str | None = None
    """The digest that the file's name claims for its one tensor, as capture roots name theirs."""

    @property
    def path(self) -> Path:
        """`location` as a Path."""
        return Path(self.location)


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """A Python scalar in the row itself."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class RandomInput:
    """An input that was never captured; only its shape and dtype count."""

    descriptor: Mapping[str, Any]


InputSource: TypeAlias = FileTensor | ScalarInput | RandomInput


@dataclass(slots=True)
class Case:
    """One workload row, with one receipt where there is one."""

    definition: str
    uuid: str
    """The workload's uuid as the root names it."""
    axes: dict[str, int]
    inputs: dict[str, InputSource]
    where: str
    """`file:line` of the workload row."""
    outputs: dict[str, FileTensor] | None = None
    """The engine's outputs by name, in the definition's order; None where there are none."""
    receipt: dict[str, Any] | None = None
    receipt_where: str | None = None
    """`file:line` of the receipt."""
    verdict: dict[str, Any] | None = None
    """The root's own replay case for this receipt (`status`, `seconds`, …)."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of the row that the format does not know."""

    @property
    def capture_uuid(self) -> str:
        """The receipt's own uuid: the workload's, unless the receipt names another."""
        return str((self.receipt or {}).get("capture_uuid", self.uuid))

    @property
    def random_inputs(self) -> list[str]:
        """Inputs without content; such a workload cannot be replayed."""
        return [name for name, value in self.inputs.items() if isinstance(value, RandomInput)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row, file or path that cannot be used, and why."""

    where: str
    """`file:line`, or a file."""
    reason: str
    definition: str | None = None
    uuid: str | None = None
    """The workload's uuid when the row tells it."""
    unsafe: bool = False
    """It tried to leave the root or is a pickle: no part of the root is to be imported."""

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A receipt whose workload row is not there."""

    where: str
    uuid: str
    definition: str
    torn: bool
    """Its workload row is the torn last line of a file."""


class RootKind(Enum):
    """Which program wrote a root."""

    CAPTURE = "capture root"
    """Receipts under `results/`."""
    MERGED = "merged dataset"
    """Receipts in `captures.jsonl` at the top."""
    TRACE = "FlashInfer-Trace dataset"
    """No receipts: workloads without engine outputs."""


@dataclass(slots=True)
class Root:
    """Everything that a dataset folder says."""

    path: Path
    kind: RootKind
    definitions: dict[str, Definition] = field(default_factory=dict)
    """Found beside the root, by name; a broken reference is kept (see `reference_problem`)."""
    cases: list[Case] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Torn lines, repeated rows, unreadable definitions: nothing that a row depends on."""
    report: dict[str, Any] | None = None
    """`results/replay.json`, when there is one."""
    receipts_mtime_us: int = 0
    """When the receipts file was last written, microseconds UTC."""
