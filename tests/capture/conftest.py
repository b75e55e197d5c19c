"""An armed tap with a recorder that keeps captures in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kclab.capture import context
from kclab.capture.adapters import load_adapters
from kclab.capture.call import Call
from kclab.capture.plan import CapturePlan
from kclab.capture.tap import Tap
from kclab.core.catalog import Catalog


@dataclass
class Captured:
    """One captured call, with copies of its tensors."""

    call: Call
    inputs: dict[str, Any]
    outputs: dict[str, Tensor] = field(default_factory=dict)
    stall_us: int = 0

    @property
    def name(self) -> str:
        return self.call.definition.name


class MemoryRecorder:
    """Checks and copies as the real recorder does, and writes nothing."""

    def __init__(self, plan: CapturePlan):
        self.plan = plan
        self.captures: list[Captured] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.errors: list[Exception] = []
        self.watching_us = 0
        self._seen: set[Any] = set()

    def wants(self, definition: str, **key: Any) -> bool:
        key.pop("axes")
        if self.plan.per != "site":
            key.pop("module_path")
        chosen = (definition, *sorted(key.items()))
        fresh = chosen not in self._seen
        self._seen.add(chosen)
        return fresh

    def begin(self, call: Call) -> Captured:
        call.definition.check_inputs(_facts(call.inputs))
        return Captured(call, {name: _copy(value) for name, value in call.inputs.items()})

    def finish(self, pending: Captured, outputs: Mapping[str, Tensor]) -> None:
        axes = pending.call.definition.check_inputs(_facts(pending.inputs))
        pending.call.definition.check_outputs(_facts(outputs), axes)
        pending.outputs = {name: _copy(value) for name, value in outputs.items()}
        self.captures.append(pending)

    def abandon(self, pending: Captured) -> None:
        self.counts["", "abandoned"] += 1

    def count(self, what: str, outcome: str, n: int = 1) -> None:
        self.counts[what, outcome] += n

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def spent(self, copying_us: int, watching_us: int) -> None:
        self.watching_us += watching_us

    def failed(self, what: str, error: Exception) -> None:
        self.errors.append(error)
        if self.plan.strict:
            raise error

    def names(self) -> list[str]:
        return [capture.name for capture in self.captures]


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: (str(v.dtype), tuple(v.shape)) if isinstance(v, Tensor) else v
        for name, v in values.items()
    }


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


# Tiny operators on a busy machine: OpenMP's threads would wait for each other most of the time.
torch.set_num_threads(1)

Tapped = Callable[..., MemoryRecorder]


@pytest.fixture
def tapped(tmp_path: Path) -> Iterator[Tapped]:
    """`tapped(**plan)` arms a tap in this process and returns its recorder."""
    taps: list[Tap] = []

    def arm(**choices: Any) -> MemoryRecorder:
        choices.setdefault("define_missing", True)
        plan = CapturePlan(tmp_path / "kclab.db", 1, "run", tmp_path, **choices)
        recorder = MemoryRecorder(plan)
        taps.append(Tap(plan, recorder, load_adapters(plan.adapters), Catalog({})))
        taps[-1].arm()
        return recorder

    yield arm
    for tap in taps:
        tap.disarm()
    context.set_request_source(None)
    assert torch._C._len_torch_dispatch_stack() == 0


def current_tap() -> Tap:
    """The tap that `tapped` armed last."""
    tap = context._Process.watcher
    assert isinstance(tap, Tap)
    return tap


def armed_with_root(tapped: Tapped, adapter: Any, module: Any) -> MemoryRecorder:
    """The recorder of an adapter on a stand-in of its module, whose MODEL's calls are the steps."""
    recorder = tapped(adapters=(), root=adapter.MODEL)
    tap = current_tap()
    adapter.instrument(module, tap)
    assert tap.roots is not None
    tap.roots.consider(getattr(module, adapter.MODEL))
    return recorder


def only(recorder: MemoryRecorder, prefix: str) -> Captured:
    """The one capture whose definition's name begins so."""
    assert recorder.errors == []
    (captured,) = [c for c in recorder.captures if c.name.startswith(prefix)]
    return captured


def replayed(captured: Captured) -> Tensor:
    """What the definition's reference makes of the captured inputs."""
    namespace: dict[str, Any] = {}
    exec(captured.call.definition.reference, namespace)
    result: Tensor = namespace["run"](**captured.inputs)
    return result
