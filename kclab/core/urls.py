"""URLs where a path may stand too, and text about them that may be kept and shown."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kclab.core.errors import BadUsage

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_USER = re.compile(rf"({SCHEME.pattern})(?:[^/\s@]+:(?!\d+/)[^\s@]+|[^/\s?#@'\"]*)@")
"""A password may hold an unescaped `/`; what follows a host and its port may hold an `@`."""
_QUERY = re.compile(rf"({SCHEME.pattern}[^\s?#'\"]*)[?#][^\s'\"]*")


def is_url(text: str) -> bool:
    """Whether `text` begins with a scheme, as `s3://` or `zip::s3://`; a drive letter is none."""
    return SCHEME.match(text.rpartition("::")[2]) is not None


def without_credentials(text: str) -> str:
    """`text` with what URLs in it may hold of secrets taken out: `user:password@` and queries.

    A presigned URL keeps its signature in the query.
    """
    return _QUERY.sub(r"\1?…", _USER.sub(r"\1…@", text))


def local_path(text: str) -> Path | None:
    """The path that `text` is, or that its `file://` names; None for any other URL.

    Raises BadUsage for a `file://` of another host.
    """
    if not is_url(text):
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise BadUsage(f"{text}: a file URL names this machine's files: file:///folder/name.")
    return Path(unquote(parts.path))
