"""A step that is not selected costs nothing that can be measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kclab.capture.adapters import load_adapters
from kclab.capture.plan import CapturePlan
from kclab.capture.recorder import Recorder
from kclab.capture.tap import Tap
from kclab.core.catalog import Catalog

pytestmark = pytest.mark.slow
PAIRS = 51


class Model(nn.Module):
    """Some 24 blocks of linears and attention; a forward takes 100 ms or more."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(24)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_unselected_step_is_as_fast_as_without_capture(tmp_path: Path) -> None:
    model, x = Model(), torch.randn(1, 160, 256)
    plan = CapturePlan(tmp_path / "kclab.db", 1, "run", tmp_path, root="Model", steps=(10**9,))

    def seconds(armed: bool) -> float:
        tap = Tap(plan, Recorder(plan), load_adapters(["torch"]), Catalog({}))
        if armed:
            tap.arm()
        try:
            with torch.no_grad():
                started = time.process_time()
                model(x)
                return time.process_time() - started
        finally:
            if armed:
                tap.disarm()

    seconds(True), seconds(False)
    ratios, plain = [], []
    for pair in range(PAIRS):
        first = pair % 2 == 0
        timed = {armed: seconds(armed) for armed in (first, not first)}
        ratios.append(timed[True] / timed[False])
        plain.append(timed[False])
    assert statistics.median(plain) >= 0.1
    assert statistics.median(ratios) < 1.01
