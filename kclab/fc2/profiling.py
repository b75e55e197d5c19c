"""One call between cudaProfilerStart and Stop, so that ncu or nsys sees nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from kclab.core.errors import BadUsage, CheckFailed
from kclab.db.store import Store
from kclab.fc2.backends import Candidate
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM
from kclab.fc2.lab import Session, Subject, session
from kclab.fc2.parity import compare
from kclab.fc2.search.pool import Entry

TARGETS = ("baseline", "candidate")


def profile_one(
    store: Store,
    subject: Subject,
    choose: Callable[[Session], Candidate],
    target: str,
    warmup: int,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Profile the baseline or a candidate; what was launched and whether its bytes are right.

    Raises CheckFailed, with the rows kept, where a candidate's bytes differ.
    """
    if target not in TARGETS:
        raise BadUsage(f"--profile-target {target}: one of {', '.join(TARGETS)}.")
    with session(store, subject, "profile", params) as open_run:
        bench = open_run.bench
        candidate = choose(open_run)
        prepared = bench.gemm.prepare(candidate.config)
        launch = bench.gemm.fingerprint(prepared)
        open_run.sink.entries([Entry(candidate, launch=launch, prepared=prepared)])
        arms = {arm.name: arm.launch for arm in bench.arms({CANDIDATE_ARM: prepared})}
        call = arms[BASELINE_ARM if target == "baseline" else CANDIDATE_ARM]
        for _ in range(warmup):
            call()
        bench.gemm.synchronize()
        with _profiler(open_run.backend.device):
            call()
            bench.gemm.synchronize()
        found: dict[str, Any] = {
            "target": target,
            "config": candidate.config.text,
            "kernel": launch.kernel,
        }
        if target == "candidate":
            found |= _parity(open_run, candidate, prepared)
        open_run.active.finish_as("passed", f"{target} {candidate.config.text}")
        return found


def _parity(open_run: Session, candidate: Candidate, prepared: Any) -> dict[str, Any]:
    parity = compare(open_run.bench.output_of(prepared), open_run.bench.expected)
    if not parity.exact:
        raise CheckFailed(
            f"config {candidate.config.text} is not byte-exact: {parity.different} elements differ."
        )
    return {"exact": parity.exact, "output_sha256": parity.actual_sha256}


@contextmanager
def _profiler(device: str) -> Iterator[None]:
    if device != "cuda":
        yield
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no type for it
    runtime.cudaProfilerStart()
    try:
        yield
    finally:
        runtime.cudaProfilerStop()
