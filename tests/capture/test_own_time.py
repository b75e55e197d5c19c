"""What a selected step spends in kclab is told: all of it, and nothing of the program's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from kclab.capture import context, mode
from kclab.capture.coverage import STORING, WATCHING, own_time_us, run_coverage
from kclab.db.queries.coverage import coverage
from kclab.db.store import Store
from tests.capture.conftest import Tapped
from tests.capture.recording import Session, recording

MS = 1_000_000


class Clock:
    """Goes on only where a test says so."""

    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(mode, "perf_counter_ns", made)
    return made


@pytest.fixture
def slow_kernel(clock: Clock) -> Iterator[None]:
    """`torch.ops.kclab_own_time.slow(x)` takes 100 ms of the clock."""
    library = torch.library.Library("kclab_own_time", "DEF")
    library.define("slow(Tensor x) -> Tensor")

    def slow(x: Tensor) -> Tensor:
        clock.now += 100 * MS
        return x.clone()

    library.impl("slow", slow, "CPU")
    yield
    library._destroy()


class OwnTimeRoot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.kclab_own_time.slow(x) @ x


@torch.no_grad()
def test_kernels_are_not_kclabs_time(tapped: Tapped, slow_kernel: None) -> None:
    recorder = tapped(root="OwnTimeRoot")
    OwnTimeRoot()(torch.ones(2, 2))
    assert recorder.names() and recorder.watching_us == 0


@torch.no_grad()
def test_looking_at_an_operator_is_kclabs_time(
    tapped: Tapped, slow_kernel: None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = tapped(root="OwnTimeRoot")
    wants = recorder.wants

    def slow_wants(definition: str, **key: object) -> bool:
        clock.now += 7 * MS
        return wants(definition, **key)

    monkeypatch.setattr(recorder, "wants", slow_wants)
    OwnTimeRoot()(torch.ones(2, 2))
    OwnTimeRoot()(torch.ones(2, 2))
    assert recorder.watching_us == 2 * 7_000


@torch.no_grad()
def test_step_that_is_not_selected_costs_and_tells_nothing(
    tapped: Tapped, slow_kernel: None
) -> None:
    recorder = tapped(root="OwnTimeRoot", steps=(5,))
    OwnTimeRoot()(torch.ones(2, 2))
    assert recorder.watching_us == 0 and not recorder.names()


def test_stalls_are_told_once(clock: Clock) -> None:
    step = context.Step(context.Request("a"), 0)
    with mode.own_time(step):
        clock.now += 3 * MS
        with mode.own_time(step):
            clock.now += 2 * MS
    assert step.own_ns == 5 * MS


def test_own_time_is_a_runs_and_no_definitions(session: Session) -> None:
    session.recorder.spent(5, 70)
    session.recorder.spent(0, 7)
    session.gemm()
    session.drain()
    connection = session.store.read()
    try:
        assert own_time_us(connection, session.active.id, WATCHING) == 77
        rows = run_coverage(connection, session.active.id)
        assert [row.name for row in rows] == [coverage(connection, 1)[0]["definition"]]
    finally:
        connection.close()


@pytest.fixture
def session(store: Store) -> Iterator[Session]:
    with recording(store) as made:
        yield made


def test_the_writers_cpu_time_is_told(session: Session) -> None:
    session.gemm()
    session.drain()
    session.recorder.close(30)
    with closing(session.store.read()) as connection:
        assert own_time_us(connection, session.active.id, STORING) > 0
