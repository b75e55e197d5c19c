"""Which schema revisions this kclab knows. A test holds them equal to the migrations."""

from __future__ import annotations

KNOWN_REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""Oldest first."""

SCHEMA_REVISION = KNOWN_REVISIONS[-1]
"""What `kclab.db` must be at."""
