"""Memory of the engine's own GPU that copies may take until the writer fetches them.

A copy on the GPU runs at its memory's speed, a copy to the host at the bus's, and the first one
into new host memory far below it. So what fits waits on the GPU, and the engine's thread only
issues the copy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

SHARE = 0.25
"""Of the memory that is free at the first use."""
LEFT_FREE = 1 << 30
"""Bytes that the engine keeps: nothing is taken below."""


@dataclass(slots=True)
class _Account:
    bound: int
    held: int = 0
    most: int = 0
    """The most that was held: torch's allocator keeps it for the next copies."""


class DeviceRoom:
    """Bytes held for copies, on each GPU. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def take(self, device: str, nbytes: int) -> bool:
        """Hold `nbytes` of a device (`cuda:0`); False where there is no room, or no GPU."""
        if not device.startswith("cuda"):
            return False
        free, _ = torch.cuda.mem_get_info(device)
        with self._lock:
            account = self._accounts.setdefault(device, _Account(int(free * SHARE)))
            held = account.held + nbytes
            growth = max(0, held - account.most)
            if held > account.bound or (growth and growth + LEFT_FREE > free):
                return False
            account.held, account.most = held, max(account.most, held)
            return True

    def give_back(self, device: str, nbytes: int) -> None:
        """Release bytes that were taken."""
        if nbytes:
            with self._lock:
                self._accounts[device].held -= nbytes
