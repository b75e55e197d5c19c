"""What replay asks of those who judge: worker processes of this machine, or a Ray cluster's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from kclab.core.definition import Definition
from kclab.replay.task import Outcome, Task


class Pool(Protocol):
    """Judges tasks somewhere. Use it as a context manager: leaving it ends its workers."""

    greeting: Mapping[str, Any]
    """What the first worker said, empty until then: device, GPUs, torch, environment's facts."""

    def __enter__(self) -> Pool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def define(self, definition: Definition) -> str:
        """Make a definition known to all workers; returns the name that tasks give it."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """The outcome of every task, in the order they fall; tasks are taken as needed."""
