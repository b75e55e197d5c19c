"""What the tap asks of a recorder, so that tests may put a plain one in its place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from kclab.capture.call import Call, Pending


class Recording(Protocol):
    """Takes the calls of selected steps; `kclab.capture.recorder` has the real one."""

    def wants(
        self,
        definition: str,
        *,
        request_id: str,
        step: int,
        variant: str | None,
        module_path: str | None,
        axes: Mapping[str, int],
    ) -> bool:
        """Whether a call is to be captured."""

    def begin(self, call: Call) -> Pending | None:
        """Copy the inputs."""

    def finish(self, pending: Pending, outputs: Mapping[str, Tensor]) -> None:
        """Copy the outputs and hand over."""

    def abandon(self, pending: Pending) -> None:
        """Forget a call that raised."""

    def count(self, what: str, outcome: str, n: int = 1) -> None:
        """Count calls that are not captured."""

    def step(self) -> AbstractContextManager[None]:
        """A selected step runs inside."""

    def spent(self, copying_us: int, watching_us: int) -> None:
        """Count what a step cost the engine's thread."""

    def failed(self, what: str, error: Exception) -> None:
        """Count a capture error and keep its first message; raises it under `strict`."""
