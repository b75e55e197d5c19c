"""A builder of dataset folders, and a short way to look at a store's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.db.store import Store
from tests.dataset.builder import RootBuilder

Rows = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def source(tmp_path: Path) -> RootBuilder:
    """An empty capture root to fill."""
    return RootBuilder(tmp_path / "source")


@pytest.fixture
def rows(store: Store) -> Rows:
    """`rows("SELECT …")` on the store's database."""

    def query(sql: str, *values: Any, at: Store = store) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(at.database)) as connection:
            return connection.execute(sql, values).fetchall()

    return query
