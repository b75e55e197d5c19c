"""Replay's tests share one worker process: starting one loads torch, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import pytest

from kclab.replay.workers import WorkerPool


class LentPool:
    """A pool that stays open when its borrower leaves it."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    def __enter__(self) -> WorkerPool:
        return self.pool

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A borrower that was interrupted leaves workers with tasks that nobody waits for.
        for worker in [worker for worker in self.pool.workers if worker.tasks]:
            worker.tasks.clear()
            self.pool._replace(worker)


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("cpu", 1, timeout=60.0) as opened:
        yield opened


@pytest.fixture
def warm_workers(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services use the shared worker; what runs is the real thing."""

    def lend(_device: str, _jobs: int | None, _timeout: float) -> LentPool:
        return LentPool(pool)

    monkeypatch.setattr("kclab.replay.service.WorkerPool", lend)
