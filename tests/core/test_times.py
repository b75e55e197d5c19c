"""Instants are integers in UTC whatever the machine's zone, and run ids sort by time."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid

import pytest

from kclab.core.times import now_us, uuid7


def test_ids_made_one_after_another_sort_in_that_order() -> None:
    ids = []
    for _ in range(200):
        ids.append(uuid7())
        time.sleep(2e-6)
    assert ids == sorted(ids)
    assert len(set(ids)) == 200


def test_an_id_is_a_version_7_uuid_of_this_instant() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(uuid7())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC", "America/St_Johns"])
def test_the_zone_of_the_machine_does_not_move_an_instant(zone: str) -> None:
    code = "from kclab.core.times import now_us; print(now_us())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"TZ": zone}, capture_output=True, text=True, check=True
    )
    assert abs(int(done.stdout) - now_us()) < 60_000_000
