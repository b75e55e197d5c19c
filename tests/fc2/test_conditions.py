"""Clock, temperature and throttle reasons of every measured round, read between rounds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing

import pytest

from kclab.db.store import Store
from kclab.fc2.gpu import GLANCE, Gpu, Reading, Watcher, told_conditions
from kclab.fc2.timing import Arm, Rounds
from tests.conftest import Cli

SLOWED = 0x4
CONFIG = "66:22:36:1:0:0:0:0:2"


class FakeGpu(Gpu):
    """A GPU that the power cap slows from its third reading on."""

    def __init__(self, note: Callable[[], None] = lambda: None) -> None:
        self._note, self._readings = note, 0

    def read(self) -> Reading:
        return Reading(1980, 40, 300.0, (), ())

    def glance(self) -> tuple[int | None, int | None, int]:
        self._note()
        self._readings += 1
        slow = self._readings > 2
        return 1755 if slow else 1980, 40 + self._readings, SLOWED if slow else 0


class Ticks:
    """A clock that notes when it times."""

    policy, settles = "hot", 0.0

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def sample(self, launch: Callable[[], None]) -> float:
        self._events.append("sample")
        return 1.0


def test_a_round_is_read_after_its_last_sample() -> None:
    events: list[str] = []
    gpu = Watcher(FakeGpu(lambda: events.append("read")))
    rounds = Rounds(Ticks(events), random.Random(0), gpu=gpu)
    arms = [Arm("A", lambda: None), Arm("B", lambda: None)]
    samples = rounds.mirrored(arms, 3)
    assert events == [*["sample"] * 4, "read"] * 3
    assert [glance[0] for glance in rounds.glances] == sorted({s.round for s in samples})
    assert len(rounds.glances[0]) == len(GLANCE)


def test_screening_reads_once_and_between_samples_only() -> None:
    events: list[str] = []
    rounds = Rounds(Ticks(events), random.Random(0), gpu=Watcher(FakeGpu()))
    rounds.shuffled([Arm("A", lambda: None)], 3)
    assert rounds.glances == []
    assert len(rounds.screened) == 1, "one look after the heat, none while it is timed"


def test_a_sweeps_screening_and_its_throttling_are_kept_with_the_run(
    invoke: Cli, store: Store, fake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.fc2.lab.find_gpu", lambda _uuid: FakeGpu())
    shape = ("--shape", "10x32x96", "--backend", "cublaslt")
    done = invoke("--db", store.database, "fc2", "sweep", *shape, "--until", "heuristics")
    assert done.code == 0, done.err
    with closing(store.read()) as connection:
        (volatile,) = connection.execute("SELECT volatile FROM run").fetchone()
    screening = json.loads(volatile)["screening"]
    assert tuple(screening["fields"]) == GLANCE
    assert len(screening["rounds"]) >= 3, "after each heat"
    assert any(row[3] & SLOWED for row in screening["rounds"])


def test_conditions_in_words() -> None:
    rounds = [[1, 1980, 41, 0], [2, 1755, 44, SLOWED], [3, 1755, 47, SLOWED]]
    told = told_conditions({"rounds": rounds})
    assert told == "1755 to 1980 MHz, 41 to 47 °C, power cap in 2 of 3 rounds"
    assert told_conditions({}) is None


def test_every_round_of_a_result_is_in_its_row_and_explained(
    invoke: Cli, store: Store, fake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.fc2.lab.find_gpu", lambda _uuid: FakeGpu())
    fc2 = ("--db", store.database, "fc2")
    shape = ("--shape", "10x32x96", "--backend", "cublaslt")
    done = invoke(*fc2, "selected", *shape, "--candidate", CONFIG)
    assert done.code == 0, done.err
    with closing(store.read()) as connection:
        rows = connection.execute(
            "SELECT m.detail, group_concat(DISTINCT s.round) FROM measurement m"
            " JOIN timing_sample s ON s.measurement_id = m.id GROUP BY m.id"
        ).fetchall()
    assert rows
    for detail, timed in rows:
        found = json.loads(detail)["conditions"]
        assert tuple(found["fields"]) == GLANCE
        assert {row[0] for row in found["rounds"]} == {int(n) for n in timed.split(",")}
    assert "power cap in" in invoke(*fc2, "explain", CONFIG).out
