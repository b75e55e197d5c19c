"""A store worth reporting on, and its report."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kclab.db.store import Store
from tests.cli.conftest import fixed_clock as fixed_clock
from tests.conftest import Cli
from tests.report.sample import fill_report


@pytest.fixture
def reported(store: Store, fixed_clock: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The report's sample store, which commands find by KCLAB_DB."""
    fill_report(store)
    monkeypatch.setenv("KCLAB_DB", str(store.database))
    yield store


@pytest.fixture
def page(reported: Store, invoke: Cli) -> str:
    """The HTML of all of it."""
    done = invoke("report", "-o", "-", "-f", "html")
    assert done.code == 0, done.err
    return done.out
