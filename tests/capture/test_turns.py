"""Threads take short turns while the writer stores, and theirs again afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from kclab.blob.batch import BlobBatch
from kclab.capture.turns import TURN_SECONDS, short_turns
from kclab.db.store import Store
from tests.capture.recording import recording


@pytest.fixture(autouse=True)
def interval() -> Iterator[float]:
    """The process's own turns, whatever a test does to them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_turns_are_short_while_something_is_stored_and_as_before_afterwards(
    store: Store, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    sync = BlobBatch.sync

    def watched(batch: BlobBatch) -> None:
        seen.append(sys.getswitchinterval())
        sync(batch)

    monkeypatch.setattr(BlobBatch, "sync", watched)
    with recording(store) as session:
        session.gemm(rows=2)
        session.drain()
        session.recorder.close(10)
        assert sys.getswitchinterval() == interval
    assert seen
    assert seen == pytest.approx([TURN_SECONDS] * len(seen))


def test_what_the_engine_sets_meanwhile_stays(interval: float) -> None:
    with short_turns():
        sys.setswitchinterval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.001)


def test_shorter_turns_than_ours_are_left_alone() -> None:
    sys.setswitchinterval(0.0001)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_an_error_inside_gives_the_turns_back(interval: float) -> None:
    with pytest.raises(OSError, match="full"), short_turns():
        raise OSError("full")
    assert sys.getswitchinterval() == interval
