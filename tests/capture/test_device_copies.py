"""Copies that wait on the engine's GPU: what they hold, and that the store gets the right bytes.

Without a GPU the CPU stands for one: its room is granted, and copies "on the device" are clones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kclab.capture.call import Pending
from kclab.capture.device_room import LEFT_FREE, SHARE, DeviceRoom
from kclab.capture.snapshot import Snapshot, fetch
from kclab.core.families import FAMILIES
from kclab.db.store import Store
from tests.capture.recording import Session, recording

SIZE = 512
WHAT = FAMILIES["dense_gemm"].make(dtype="fp32", n=SIZE, k=SIZE)
WEIGHT_BYTES = SIZE * SIZE * 4
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
    ),
]


class GrantedRoom(DeviceRoom):
    """Room on any device, up to a bound."""

    bound = 1 << 40
    held = 0

    def take(self, device: str, nbytes: int) -> bool:
        if self.held + nbytes > self.bound:
            return False
        self.held += nbytes
        return True

    def give_back(self, device: str, nbytes: int) -> None:
        self.held -= nbytes


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Session], GrantedRoom]]:
    monkeypatch.setattr("kclab.capture.worker.DeviceRoom", GrantedRoom)

    def of(session: Session) -> GrantedRoom:
        found = session.recorder._worker.room
        assert isinstance(found, GrantedRoom)
        return found

    yield of


def gemm(session: Session, weight: Tensor, step: int = 0) -> Pending | None:
    a = torch.randn(2, SIZE, device=weight.device)
    return session.record({"A": a, "W": weight}, {"C": a @ weight.T}, WHAT, step=step)


def staged(pending: Pending | None) -> bool:
    assert pending is not None
    return all(isinstance(v, Snapshot) and v.staged for v in pending.inputs.values())


@pytest.mark.parametrize("device", DEVICES)
def test_what_waits_on_the_device_is_stored_as_it_was(
    store: Store, room: Callable[[Session], GrantedRoom], device: str
) -> None:
    with recording(store) as session:
        weight = torch.randn(SIZE, SIZE, device=device)
        a, before = torch.randn(2, SIZE, device=device), weight.clone().cpu()
        pending = session.begin({"A": a, "W": weight.t()}, WHAT)
        c = a @ weight
        weight.zero_()
        session.recorder.finish(pending, {"C": c})
        c_before = c.clone().cpu()
        c.zero_()
        assert staged(pending) and pending.queued == 0
        session.drain()
        assert room(session).held == 0
        (stored,) = session.captures()
    assert torch.equal(stored.inputs["W"], before.t())
    assert torch.equal(stored.outputs["C"], c_before)


@pytest.mark.parametrize("device", DEVICES)
def test_the_writer_recognises_a_repeated_weight(
    store: Store,
    room: Callable[[Session], GrantedRoom],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[int] = []

    def counting(snapshot: Snapshot) -> None:
        fetched.append(snapshot.nbytes)
        fetch(snapshot)

    monkeypatch.setattr("kclab.capture.writer.fetch", counting)
    weight = torch.randn(SIZE, SIZE, device=device)
    with recording(store, max_bytes=10 * WEIGHT_BYTES) as session:
        for step in range(3):
            assert staged(gemm(session, weight, step))
            session.drain()
        assert session.control.reserved() < 2 * WEIGHT_BYTES, "a repeated weight takes no allowance"
        assert room(session).held == 0
        assert len(session.captures()) == 3
    assert fetched.count(WEIGHT_BYTES) == 1, "what is stored already stays where it is"


def test_a_full_queue_does_not_refuse_what_waits_on_the_device(
    store: Store, room: Callable[[Session], GrantedRoom]
) -> None:
    with recording(store, queue_bytes=1, on_full="drop") as session:
        for step in range(3):
            assert staged(gemm(session, torch.randn(SIZE, SIZE), step))
        session.drain()
        assert len(session.captures()) == 3


def test_a_call_that_the_device_has_no_room_for_goes_to_the_queue(
    store: Store, room: Callable[[Session], GrantedRoom], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrantedRoom, "bound", WEIGHT_BYTES)
    with recording(store) as session:
        pending = gemm(session, torch.randn(SIZE, SIZE))
        assert pending is not None and pending.queued == pending.reserved > WEIGHT_BYTES
        session.drain()
        assert len(session.captures()) == 1


def test_near_the_end_of_the_allowance_a_repeated_weight_still_fits(
    store: Store, room: Callable[[Session], GrantedRoom]
) -> None:
    weight = torch.randn(SIZE, SIZE)
    with recording(store, max_bytes=int(1.5 * WEIGHT_BYTES)) as session:
        assert staged(gemm(session, weight))
        session.drain()
        looked_at = gemm(session, weight, step=1)
        assert staged(looked_at) and looked_at is not None
        assert looked_at.staged < WEIGHT_BYTES, "it is looked at before it is copied"
        session.drain()
        assert len(session.captures()) == 2
        assert gemm(session, torch.randn(SIZE, SIZE), step=2) is None
        assert room(session).held == 0


def test_a_call_that_fails_gives_its_room_back(
    store: Store, room: Callable[[Session], GrantedRoom]
) -> None:
    with recording(store) as session:
        pending = session.begin({"A": torch.ones(1, SIZE), "W": torch.ones(SIZE, SIZE)}, WHAT)
        session.recorder.finish(pending, {"C": torch.ones(3, 3)})
        assert room(session).held == 0 and pending.reserved == 0


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU's free memory, to be set."""
    memory = {"free": 100 << 30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory["free"], 0))
    return memory


def test_a_cpu_has_no_room_of_its_own() -> None:
    assert not DeviceRoom().take("cpu", 1)


def test_copies_take_a_share_of_what_was_free(free: dict[str, int]) -> None:
    room, bound = DeviceRoom(), int(free["free"] * SHARE)
    assert room.take("cuda:0", bound)
    assert not room.take("cuda:0", 1)
    assert room.take("cuda:1", 1), "each GPU has its own"
    room.give_back("cuda:0", bound)
    assert room.take("cuda:0", bound)


def test_the_engine_keeps_its_last_gigabyte(free: dict[str, int]) -> None:
    room = DeviceRoom()
    assert room.take("cuda:0", 1 << 20)
    free["free"] = LEFT_FREE
    assert not room.take("cuda:0", 1)
    room.give_back("cuda:0", 1 << 20)
    assert room.take("cuda:0", 1 << 20), "torch still holds what was given back"
