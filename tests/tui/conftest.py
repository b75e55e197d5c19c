"""A filled store under a fixed clock; tests that are coroutines run on a loop of their own."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator

import pytest

from kclab.db.store import Store
from tests.cli.sample import NOW
from tests.tui.sample import fill


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Now is NOW, here is UTC."""
    monkeypatch.setenv("KCLAB_NOW", NOW)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def lab(store: Store, fixed_clock: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The sample store; the working folder is its own, so that screens name it kclab.db."""
    fill(store)
    monkeypatch.chdir(store.database.parent)
    return store
