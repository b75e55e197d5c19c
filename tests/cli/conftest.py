"""A filled store, a fixed clock, and golden files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kclab.db.store import Store
from tests.cli.sample import NOW, fill

Golden = Callable[[str, str], None]


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Now is NOW, the local time zone Tokyo's, the terminal 80 columns wide."""
    monkeypatch.setenv("KCLAB_NOW", NOW)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def sample(store: Store, fixed_clock: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The sample store, which commands find by KCLAB_DB."""
    fill(store)
    monkeypatch.setenv("KCLAB_DB", str(store.database))
    return store


@pytest.fixture
def golden() -> Golden:
    """`golden(name, text)` compares with tests/cli/golden/NAME; GOLDEN=write writes it anew."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("GOLDEN") == "write":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
