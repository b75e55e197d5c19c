"""Random inputs are the same in every run."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20260101)
