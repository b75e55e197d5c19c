"""Capture: whole throughput, the engine's stall with a repeated weight, and an idle tap."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.datasets import gemm_definition, small_gemms, write_definition
from benchmarks.measure import Result, paired, seconds
from benchmarks.seed_way import Writer
from kclab.capture.adapters import load_adapters
from kclab.capture.call import Call
from kclab.capture.control import ControlFolder
from kclab.capture.plan import CapturePlan
from kclab.capture.recorder import Recorder
from kclab.capture.tap import Tap
from kclab.core.catalog import load_catalog
from kclab.core.definition import Definition
from kclab.db.runs import run
from kclab.db.store import Store

DRAIN_SECONDS = 600


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """A recorder without limits on a fresh store, inside a run."""
    store = Store.at(folder / "kclab.db")
    with run(store, "capture", {"benchmark": True}) as active:
        control = ControlFolder.of(store.database, active.uuid)
        control.create()
        plan = CapturePlan(
            database=store.database,
            run_id=active.id,
            run_uuid=active.uuid,
            control=control.path,
            max_per_axes=None,
            max_bytes=None,
        )
        recorder = Recorder(plan)
        recorder.acknowledge()
        yield recorder
        if not recorder.close(DRAIN_SECONDS):
            raise RuntimeError("the recorder did not drain")
        control.remove()


def record(recorder: Recorder, what: Definition, inputs: Any, output: Any, step: int) -> None:
    """One call through the recorder, as an adapter makes it."""
    call = Call(
        definition=what,
        inputs=inputs,
        operation="linear",
        request_id="benchmark",
        step=step,
        variant=f"rows_{inputs['A'].shape[0]}",
    )
    pending = recorder.begin(call)
    if pending is None:
        raise RuntimeError("the recorder refused a call")
    recorder.finish(pending, {next(iter(what.outputs)): output})


def throughput(scratch: Path, count: int, pairs: int) -> Result:
    """`count` small GEMMs until the last byte is stored (kclab's is durable, synced)."""
    calls = small_gemms(count)
    body = gemm_definition()
    what = Definition.from_body(body)

    def plain() -> None:
        root = scratch / "plain" / "root"
        write_definition(root, body)
        writer = Writer(root, {body["name"]: body})
        for step, (inputs, output, rows) in enumerate(calls):
            writer.write(body["name"], inputs, output, {"M": rows}, _provenance(step))

    def ours() -> None:
        with recording(scratch / "kclab") as recorder:
            for step, (inputs, output, _rows) in enumerate(calls):
                record(recorder, what, inputs, output, step)

    def cleared(work: Any) -> float:
        shutil.rmtree(scratch, ignore_errors=True)
        return seconds(work)

    return paired(
        f"capture {count:,} small GEMMs, all stored",
        "plain way, not synced",
        "shown",
        lambda: cleared(plain),
        lambda: cleared(ours),
        pairs=pairs,
    )


def _provenance(step: int) -> dict[str, Any]:
    return {"request_id": "benchmark", "step": step, "operation": "linear"}


def stall(scratch: Path, pairs: int) -> Result:
    """What one captured call costs the engine's thread, its 64 MiB weight seen before."""
    import torch

    n, k = 4096, 8192
    body = gemm_definition(n, k)
    what = Definition.from_body(body)
    weight = torch.randn(n, k).bfloat16()
    activations = [torch.randn(16, k).bfloat16() for _ in range(2 * pairs + 4)]
    output = torch.randn(16, n).bfloat16()
    shutil.rmtree(scratch, ignore_errors=True)
    writer = Writer(scratch / "root", {body["name"]: body})
    steps = iter(range(10 * pairs + 10))

    def next_call() -> tuple[int, dict[str, Any]]:
        step = next(steps)
        return step, {"A": activations[step % len(activations)], "W": weight}

    def plain() -> float:
        step, inputs = next_call()
        where = _provenance(step)
        return seconds(lambda: writer.write(body["name"], inputs, output, {"M": 16}, where))

    with recording(scratch / "kclab") as recorder:

        def ours() -> float:
            step, inputs = next_call()
            taken = seconds(lambda: record(recorder, what, inputs, output, step))
            recorder.drain(DRAIN_SECONDS)
            return taken

        result = paired(
            "engine's stall per call, repeated 64 MiB weight",
            "plain way",
            "≥ 10",
            plain,
            ours,
            pairs=pairs,
        )
    shutil.rmtree(scratch)
    return result


def idle(scratch: Path, pairs: int) -> Result:
    """A forward of at least 100 ms: tap armed and no step selected, against no tap at all."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    x = torch.randn(512, 1024)
    repeats = 1
    while _forward(model, x, repeats) < 0.12:
        repeats += 1
    shutil.rmtree(scratch, ignore_errors=True)
    with recording(scratch / "kclab") as recorder:
        plan = CapturePlan(**{**_fields(recorder.plan), "steps": (10**9,)})
        tap = Tap(plan, recorder, load_adapters(("torch",)), load_catalog())

        def tapped() -> float:
            tap.arm()
            try:
                return _forward(model, x, repeats)
            finally:
                tap.disarm()

        result = paired(
            "forward ≥ 100 ms, capture armed, no step selected",
            "not installed",
            "≥ 0.99",
            lambda: _forward(model, x, repeats),
            tapped,
            pairs=pairs,
        )
    shutil.rmtree(scratch)
    return result


def _forward(model: Any, x: Any, repeats: int) -> float:
    import torch

    with torch.inference_mode():
        started = time.perf_counter()
        for _ in range(repeats):
            model(x)
        return time.perf_counter() - started


def _fields(plan: CapturePlan) -> dict[str, Any]:
    from dataclasses import fields

    return {field.name: getattr(plan, field.name) for field in fields(plan)}
