"""What a worker knows of the request that it works for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.capture.control import ControlFolder
from kclab.capture.orders import ActiveRequest, Orders


def test_worker_works_for_nobody_until_a_request_is_active(tmp_path: Path) -> None:
    assert ActiveRequest(tmp_path)() is None


def test_active_request_stays_one_object_so_that_its_steps_count(tmp_path: Path) -> None:
    source = ActiveRequest(tmp_path, {"engine_version": "1"})
    Orders(tmp_path).activate("a", {"n": 2}, {"requested_outputs": 2}, 5)
    first = source()
    assert first is not None and source() is first
    assert (first.id, first.payload, first.started_us) == ("a", {"n": 2}, 5)
    assert first.facts == {"engine_version": "1", "requested_outputs": 2}
    assert [first.next_step(), first.next_step()] == [0, 1]


def test_ended_request_is_nobodys_and_the_same_id_begins_anew(tmp_path: Path) -> None:
    source, orders = ActiveRequest(tmp_path), Orders(tmp_path)
    orders.activate("a", {}, {}, 5)
    first = source()
    orders.deactivate()
    assert source() is None
    orders.activate("a", {}, {}, 6)
    assert source() is not first


def test_half_written_request_is_never_seen(tmp_path: Path) -> None:
    Orders(tmp_path).activate("a", {}, {}, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["active"]


def test_request_is_only_looked_up_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = ControlFolder(tmp_path / "control")
    control.create()
    source, orders, looks = ActiveRequest(control.path), Orders(control.path), []
    look = source._looked_up
    monkeypatch.setattr(source, "_looked_up", lambda: looks.append(1) or look())
    assert source() is None and source() is None
    orders.activate("a", {}, {}, 5)
    first = source()
    assert first is not None and source() is first
    orders.deactivate()
    assert source() is None and source() is None
    orders.activate("a", {}, {}, 6)
    assert source() is not first
    assert len(looks) == 4
