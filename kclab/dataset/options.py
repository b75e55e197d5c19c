"""What an import is asked to do, and what it says it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kclab.core.errors import DatasetRefused
from kclab.dataset.cases import Refusal

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much of it, of how much), from any thread."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How strict an import is, and how bytes travel."""

    partial: bool = False
    """Take the good rows of a root that also has bad ones."""
    include_unvalidated: bool = False
    """Take rows that no replay has judged; they are marked so."""
    link: bool = False
    """Hard-link files instead of copying them."""
    verify: bool = False
    """Read again what the store already has: the source's bytes and the store's own."""
    repair: bool = False
    """As `verify`, and replace the store's damaged files by the source's verified ones."""
    definitions: Path | None = None
    """A folder of definitions beside the root's own."""
    model: Path | None = None
    """The checkpoint whose weights a dump's linears have; SGLang's dumps hold none."""

    @property
    def rereads(self) -> bool:
        """Nothing is taken as known by its name."""
        return self.verify or self.repair


@dataclass(slots=True)
class ImportSummary:
    """What an import added, what was there before, and what it left out."""

    source: str
    """What the path turned out to be."""
    workloads: int = 0
    captures: int = 0
    replays: int = 0
    definitions: int = 0
    blobs: int = 0
    nbytes: int = 0
    """Bytes of the new blobs' elements."""
    images: int = 0
    """Images of another store's requests."""
    absent: int = 0
    """Blobs whose bytes are elsewhere."""
    unvalidated: int = 0
    """Captures taken without a verdict."""
    foreign: int = 0
    """Solutions and traces kept for an export."""
    runs: int = 0
    other: int = 0
    """Rows of further tables of another store."""
    known: int = 0
    """Captures and workloads that were already here."""
    refused: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fetched: int = 0
    """Objects that came from a URL's service."""
    fetched_bytes: int = 0
    """Their bytes, and those of objects that did not come whole."""
    repaired: list[str] = field(default_factory=list)
    """Digests of the store's own blobs that were damaged and are whole again."""

    @property
    def added(self) -> int:
        """New rows of every kind but blobs."""
        return self.workloads + self.captures + self.replays + self.foreign + self.runs + self.other


class RootRefused(DatasetRefused):
    """A root that is not wholly valid; the message names every refused row."""

    def __init__(self, path: Path, refusals: list[Refusal], hint: str) -> None:
        self.refusals = refusals
        lines = "\n".join(str(refusal) for refusal in refusals)
        rows = "1 row" if len(refusals) == 1 else f"{len(refusals)} rows"
        super().__init__(f"{lines}\n{path}: {rows} refused, nothing was imported; {hint}")

    @property
    def summary(self) -> str:
        """Without the rows: the last line."""
        return str(self).rpartition("\n")[2]
