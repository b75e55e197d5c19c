"""URLs: told from paths, and shown without what must not be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.core.errors import BadUsage
from kclab.core.urls import is_url, local_path, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("ftp://me:pass@host/x", "ftp://…@host/x"),
        ("https://me:p/w@host", "https://…@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("https://h/x?X-Amz-Signature=1&b=2", "https://h/x?…"),
        ("--url=https://h/x#token, then", "--url=https://h/x?… then"),
        ("(https://u:p@h:1/x?y=1) and s3://a:b@c", "(https://…@h:1/x?… and s3://…@c"),
        ("what? me@home #1", "what? me@home #1"),
    ],
)
def test_secrets_in_urls_are_taken_out(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_urls_are_told_from_paths() -> None:
    assert all(map(is_url, ("s3://b/x", "hf://datasets/o/n", "file:///x", "zip::s3://b/x")))
    assert not any(map(is_url, ("runs/a", "/s3://b", "C:/x", "a:b", "")))


def test_a_file_url_is_the_path_that_it_names() -> None:
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("file://localhost/x") == Path("/x")
    assert local_path("plain/path") == Path("plain/path")
    assert local_path("s3://bucket/x") is None
    for text in ("file://host/x", "file://"):
        with pytest.raises(BadUsage, match="this machine's files"):
            local_path(text)
