"""A builder of dataset folders, and a short way to look at a store's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclab.db.store import Store
from tests.dataset.builder import RootBuilder

if TYPE_CHECKING:
    from tests.dataset.s3_server import S3, Server

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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """One server for all tests of a process: it takes half a second to start."""
    from tests.dataset.s3_server import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A local S3 with an empty bucket; the environment leads to it."""
    from tests.dataset.s3_server import S3

    test = S3(s3_server.url, s3_server.client)
    for name, value in test.environment.items():
        monkeypatch.setenv(name, value)
    test.client.create_bucket(Bucket=test.bucket)
    s3_server.current = test
    yield test
    s3_server.current = None
    test.empty()
