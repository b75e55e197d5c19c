"""`kill -9` at random moments: the store stays whole and keeps all that anybody could see.

Seeds are printed by pytest on a failure; KCLAB_TRIALS scales the number of kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from kclab.db.check import check
from kclab.db.garbage import find_garbage, remove_garbage
from kclab.db.migrate import ensure_current
from kclab.db.store import Store
from tests.dataset.builder import RootBuilder
from tests.slow.trials import KCLAB, Trial, copy_store, duration, random_moment, visible

pytestmark = pytest.mark.slow

SCALE = float(os.environ.get("KCLAB_TRIALS", "1"))
SEED = int(os.environ.get("KCLAB_SEED", "20240229"))

PROGRAM = """
import sys, time, torch
torch.manual_seed(int(sys.argv[1]))
weight = torch.randn(24, 16)
for rows in range(1, int(sys.argv[2]) + 1):
    torch.nn.functional.linear(torch.randn(rows, 16), weight)
    time.sleep(0.002)
"""
CALLS = 200
IMPORTED = 400


def trials(count: int) -> int:
    return max(1, int(count * SCALE))


def capture_command(store: Store, seed: int, calls: int = CALLS) -> list[object]:
    options = ["--define-missing", "--max-per-axes", "0"]
    program = ["--", sys.executable, "-c", PROGRAM, seed, calls]
    return [*KCLAB, "--db", store.database, "capture", "run", *options, *program]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with CALLS captures of GEMMs, and nothing else."""
    store = Store.at(tmp_path_factory.mktemp("captured") / "store" / "kclab.db")
    duration(capture_command(store, seed=0))
    assert len(visible(store)["capture"]) == CALLS
    return store


def require_clean_after_gc(store: Store) -> None:
    """What kills left can be cleaned away, and then nothing is wrong at all."""
    remove_garbage(store, find_garbage(store, 0))
    assert check(store).faults == []


def test_a_killed_capture_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    store = Store.at(tmp_path / "kclab.db")
    whole = duration(capture_command(store, seed=0))
    killed = 0
    for trial_number in range(1, trials(40) + 1):
        trial = Trial(store, capture_command(store, seed=trial_number))
        if random_moment(rng, trial, "capture", whole):
            killed += 1
            trial.kill(rng.choice(["all", "all", "parent", "children"]))
        trial.process.wait(timeout=120)
        trial.require_sound()
    assert killed >= trials(40) // 2
    duration(capture_command(store, seed=10_000))
    require_clean_after_gc(store)


def test_a_killed_replay_keeps_every_verdict_that_fell(captured: Store, tmp_path: Path) -> None:
    rng = random.Random(SEED + 1)
    store = copy_store(captured, tmp_path / "store")
    command = [*KCLAB, "--db", store.database, "replay", "--jobs", 2]
    whole = duration(command)
    killed = 0
    for _ in range(trials(30)):
        trial = Trial(store, command)
        if random_moment(rng, trial, "replay", whole):
            killed += 1
            trial.kill(rng.choice(["all", "all", "parent"]))
        trial.process.wait(timeout=120)
        trial.require_sound()
    assert killed >= trials(30) // 2
    duration(command)
    require_clean_after_gc(store)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validated capture root of IMPORTED captures."""
    builder = RootBuilder(tmp_path_factory.mktemp("source"))
    for number in range(IMPORTED):
        builder.double(float(number), 1.0, 2.0, step=number)
    return builder.report().root


@pytest.mark.parametrize("how", [(), ("--link",)], ids=["copied", "linked"])
def test_a_killed_import_leaves_all_or_nothing(
    root: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    rng = random.Random(SEED + 2)
    store = Store.at(tmp_path / "measured" / "kclab.db")
    whole = duration([*KCLAB, "--db", store.database, "import", root, *how])
    outcomes = set()
    for number in range(trials(15)):
        store = Store.at(tmp_path / str(number) / "kclab.db")
        if rng.random() < 0.8:
            ensure_current(store.database)
        command = [*KCLAB, "--db", store.database, "import", root, *how]
        trial = Trial(store, command)
        if trial.watch(rng.uniform(0, whole)):
            trial.kill()
        trial.process.wait(timeout=120)
        trial.require_sound()
        found = visible(store)
        counts = {len(found[name]) for name in ("workload", "capture", "replay")}
        assert counts in ({0}, {IMPORTED}), counts
        outcomes |= counts
        duration(command)
        assert len(visible(store)["capture"]) == IMPORTED
        require_clean_after_gc(store)
    assert 0 in outcomes


WRITER = """
import sys; from contextlib import closing; from pathlib import Path
from kclab.db.runs import run
from kclab.db.store import Store
from tests.db.filled import add_example
with run(Store.at(Path(sys.argv[1])), "capture", {}) as active:
    for number in range(1, 1_000_000):
        add_example(active, number)
        print(f"{active.uuid}-{number}", flush=True)
"""


def test_four_writers_killed_at_random_moments_lose_no_acknowledged_row(store: Store) -> None:
    """100 kills; a line on a writer's stdout is its acknowledgement."""
    rng = random.Random(SEED + 3)
    acknowledged: set[str] = set()
    for _ in range(trials(25)):
        argv = [sys.executable, "-c", WRITER, str(store.database)]
        writers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        acknowledged |= {writer.stdout.readline().strip() for writer in writers if writer.stdout}
        for writer in rng.sample(writers, 4):
            time.sleep(rng.uniform(0, 0.1))
            writer.kill()
        for writer in writers:
            lines = writer.communicate()[0].splitlines(keepends=True)
            acknowledged |= {line.strip() for line in lines if line.endswith("\n")}
    with closing(store.read()) as connection:
        kept = {row[0] for row in connection.execute("SELECT uuid FROM capture")}
        halves = connection.execute(
            "SELECT count(*) FROM capture WHERE id NOT IN (SELECT capture_id FROM replay)"
        ).fetchone()[0]
    assert len(acknowledged) > trials(25) * 4
    assert acknowledged <= kept
    assert halves == 0
    report = check(store)
    assert not report.database_damaged and not report.blobs_damaged
