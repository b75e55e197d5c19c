"""Replay on several GPUs of one host: `kclab replay --jobs N` against `--jobs 1`.

Every workload is an attention over one long cache that all of them share, so a workload's own
tensors are small and its reference keeps a GPU busy: what is measured is how the work spreads, not
the disk. The number of workloads is chosen so that one GPU works for the time asked for.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.capturing import recording
from benchmarks.measure import Result, paired, seconds
from benchmarks.replaying import command
from kclab.capture.call import Call
from kclab.core.families import FAMILIES
from kclab.core.stats import median

TRIAL = 12
"""Workloads that tell how long one takes."""
SHARP = 2.5
"""Deviation of the scores: some hundred keys of the full size count, so an output is no zero."""
MOST = 4000
"""Workloads at most: 8 MiB of disk each at full size."""


@dataclass(frozen=True, slots=True)
class Size:
    """Attention of `queries` x `heads` rows over `keys` keys of one shared head."""

    heads: int
    queries: int
    keys: int
    head_size: int = 128


FULL = Size(heads=32, queries=512, keys=131_072)
"""About 1 TFLOP in float32 a workload; 4 MiB of queries, 4 MiB of output, 64 MiB of cache."""
SMALL = Size(heads=2, queries=16, keys=256, head_size=32)


def gpus(scratch: Path, busy_seconds: float, pairs: int, *, quick: bool) -> Iterator[Result]:
    """Whole processes, then from the first workload's start to the last one's end."""
    import torch

    count = torch.cuda.device_count()
    if quick:
        yield from spread(scratch, "cpu", 2, SMALL, 40, 1)
    elif count < 2:
        print(f"gpus: needs two GPUs, and there are {count} here; --quick spreads over the CPU.",
              file=sys.stderr)  # fmt: skip
    else:
        each = trial(scratch, "cuda", FULL)
        workloads = min(MOST, math.ceil(busy_seconds / each))
        print(f"{workloads} workloads of {each * 1e3:.0f} ms on {count} GPUs", file=sys.stderr)
        yield from spread(scratch, "cuda", count, FULL, workloads, pairs)


def spread(
    scratch: Path, device: str, jobs: int, size: Size, workloads: int, pairs: int
) -> Iterator[Result]:
    """The two comparisons on a store that is made for them."""
    database = make_store(scratch / "spread", device, size, workloads)
    working: dict[int, list[float]] = {1: [], jobs: []}

    def timed(number: int) -> Callable[[], float]:
        def once() -> float:
            taken = seconds(lambda: replay(database, device, number))
            working[number].append(work_seconds(database, workloads, number))
            return taken

        return once

    what = f"replay {workloads:,} attentions on {jobs} {'GPUs' if device == 'cuda' else 'workers'}"
    target = f"≥ {0.9 * jobs:g}" if device == "cuda" else "shown"
    yield paired(
        f"{what}, whole process", "--jobs 1", target, timed(1), timed(jobs), pairs=pairs, warm_up=0
    )
    one, many = iter(working[1]), iter(working[jobs])
    yield paired(
        f"{what}, without start-up",
        "--jobs 1",
        target,
        lambda: next(one),
        lambda: next(many),
        pairs=pairs,
        warm_up=0,
    )
    shutil.rmtree(scratch)


def trial(scratch: Path, device: str, size: Size) -> float:
    """Seconds that one workload takes on one device, by the median."""
    database = make_store(scratch / "trial", device, size, TRIAL)
    replay(database, device, 1)
    taken = median([end - start for _, _, start, end in verdicts(database)])
    shutil.rmtree(scratch / "trial")
    return taken


def replay(database: Path, device: str, jobs: int) -> None:
    """`kclab replay` as a process of its own; raises where a workload does not pass."""
    command("--db", str(database), "replay", "--device", device, "--jobs", str(jobs))


def verdicts(database: Path) -> list[tuple[str, str, float, float]]:
    """(status, device, start, end) of each workload of the last replay, in seconds."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(
            "SELECT status, device, started_us / 1e6, started_us / 1e6 + seconds FROM replay"
            " WHERE run_id = (SELECT max(run_id) FROM replay)"
        ).fetchall()


def work_seconds(database: Path, workloads: int, jobs: int) -> float:
    """From the first workload's start to the last one's end.

    Raises RuntimeError unless every workload passed, and every GPU had a part in it.
    """
    rows = verdicts(database)
    devices = {device for _, device, _, _ in rows}
    passed = sum(status == "passed" for status, *_ in rows)
    if passed != workloads or (devices != {"cpu"} and len(devices) != jobs):
        raise RuntimeError(f"{passed} of {workloads} passed, on {', '.join(sorted(devices))}")
    return max(end for *_, end in rows) - min(start for _, _, start, _ in rows)


def make_store(folder: Path, device: str, size: Size, workloads: int) -> Path:
    """A store of captured attentions, computed by torch itself; returns its database."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    what = FAMILIES["sdpa"].make(h=size.heads, kv=1, d=size.head_size, dtype="bf16")
    generator = torch.Generator(device).manual_seed(3)
    scale = size.head_size**-0.5

    def noise(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    keys, values = (noise(1, 1, size.keys, size.head_size) for _ in range(2))
    with torch.inference_mode(), recording(folder) as recorder:
        for step in range(workloads):
            queries = noise(1, size.heads, size.queries, size.head_size) * SHARP
            # One key head: its queries are rows of one head.
            rows = queries.reshape(1, 1, -1, size.head_size)
            output = scaled_dot_product_attention(rows, keys, values, scale=scale)
            inputs = {"Q": queries, "K": keys, "V": values, "is_causal": False, "scale": scale}
            pending = recorder.begin(Call(what, inputs, "attention", "benchmark", step))
            if pending is None:
                raise RuntimeError("the recorder refused a call")
            recorder.finish(pending, {"O": output.reshape(queries.shape)})
    return folder / "kclab.db"
