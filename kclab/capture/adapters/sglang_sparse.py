"""Latent attention in which each query chooses its keys: DeepSeek-V3.2's, in SGLang.

The indexer's choice comes in one of three forms, by back-end and mode: places in the query's own
sequence, slots of the pool (where the choice is fused with the page table's look-up), or places
among all sequences' keys one after the other. All become the last: rows of the gathered keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kclab.capture.adapters import CannotCapture

OWN, SLOTS, FLAT = "own sequence", "slots of the pool", "all keys"


def form_of(backend: Any, forward_mode: Any) -> str | None:
    """How `backend` is told the chosen keys; None where it does not say."""
    fused = getattr(backend, "use_fused_topk", None)
    if fused is None or getattr(backend, "hisparse_coordinator", None) is not None:
        return None
    if not fused:
        return OWN
    return FLAT if backend.get_topk_transform_method(forward_mode).name == "RAGGED" else SLOTS


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen keys of a forward's queries, and what their form refers to."""

    indices: Tensor
    """int32 [Tq, K], -1 for none."""
    form: str
    queries: tuple[int, ...]
    """Tokens being computed, of each sequence."""
    keys: tuple[int, ...]
    """All tokens so far, of each sequence."""
    requests: Tensor
    """Row of each sequence in `table`."""
    table: Tensor
    """Slots of the pool by request and place."""

    def rows(self) -> Tensor:
        """int32 [Tq, K]: rows among the keys of all sequences, -1 for none.

        Raises CannotCapture where one is no key of its query's sequence.
        """
        starts = [sum(self.keys[:n]) for n in range(len(self.keys))]
        device, none = self.indices.device, self.indices < 0
        counts = torch.tensor(self.queries, device=device)
        first = torch.tensor(starts, device=device).repeat_interleave(counts)[:, None]
        after = first + torch.tensor(self.keys, device=device).repeat_interleave(counts)[:, None]
        if self.form == SLOTS:
            rows = self._rows_of_slots(starts)
        else:
            rows = self.indices + first if self.form == OWN else self.indices.long()
        if bool((((rows < first) | (rows >= after)) & ~none).any()):
            raise CannotCapture("a chosen key is not of its query's sequence")
        return rows.masked_fill(none, -1).to(torch.int32)

    def _rows_of_slots(self, starts: list[int]) -> Tensor:
        """Of each sequence apart: sequences with a common prefix share its slots."""
        parts = []
        chosen = torch.split(self.indices, list(self.queries))
        for own, request, start, total in zip(
            chosen, self.requests.tolist(), starts, self.keys, strict=True
        ):
            slots = self.table[request, :total].long()
            size = int(torch.stack([slots.max(), own.max()]).max()) + 1
            place = torch.full((size,), -1, dtype=torch.int64, device=own.device)
            place[slots] = torch.arange(start, start + total, device=own.device)
            parts.append(place[own.clamp(min=0).long()])
        return torch.cat(parts)
