"""A tiny denoiser with all its blocks, made once."""

from __future__ import annotations

import pytest

from kclab.h3.layout import Layout
from kclab.h3.model import Denoiser, random_denoiser
from kclab.h3.sizes import TINY

LAYOUT = Layout.of(96, 64, 22, 7)
"""123 tokens: 7 of text, 74 of audio, 42 of video."""


@pytest.fixture(scope="session")
def tiny() -> Denoiser:
    """50 small blocks on the CPU."""
    return random_denoiser(TINY, 440420, "cpu", kept=range(TINY.layers))
