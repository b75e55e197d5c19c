"""What a store already has of a root, asked in a few queries before anything is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kclab.dataset.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class KnownCapture:
    """A receipt that is already in the store."""

    workload: str
    """Its workload's uuid."""
    outputs: dict[str, str]
    """Output name to blob."""
    judged: bool
    """A verdict that came with a dataset is stored for it."""


@dataclass(slots=True)
class Known:
    """The part of a store that matters for one import."""

    captures: dict[str, KnownCapture] = field(default_factory=dict)
    blobs: dict[str, Arrival] = field(default_factory=dict)
    """By digest; only those whose bytes are here."""
    sources: dict[tuple[str, str], tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """(definition, dataset uuid) to (workload uuid, its `extra`) of rows without a receipt."""


def known_captures(connection: sqlite3.Connection, uuids: Iterable[str]) -> dict[str, KnownCapture]:
    """Those of `uuids` that the store has."""
    rows = connection.execute(
        "SELECT c.uuid, w.uuid, EXISTS(SELECT 1 FROM replay r WHERE r.capture_id = c.id"
        " AND r.imported), (SELECT json_group_object(o.name, o.blob_sha256) FROM capture_output o"
        " WHERE o.capture_id = c.id) FROM capture c JOIN workload w ON w.id = c.workload_id"
        " WHERE c.uuid IN (SELECT value FROM json_each(?))",
        (json.dumps(list(uuids)),),
    )
    return {row[0]: KnownCapture(row[1], json.loads(row[3]), bool(row[2])) for row in rows}


def known_blobs(connection: sqlite3.Connection, digests: Iterable[str]) -> dict[str, Arrival]:
    """Those of `digests` whose bytes the store vouches for."""
    rows = connection.execute(
        "SELECT sha256, dtype, shape, nbytes FROM blob WHERE present"
        " AND sha256 IN (SELECT value FROM json_each(?))",
        (json.dumps(list(digests)),),
    )
    return {row[0]: Arrival(row[0], row[1], tuple(json.loads(row[2])), row[3]) for row in rows}


def known_sources(
    connection: sqlite3.Connection, definitions: Iterable[str]
) -> dict[tuple[str, str], tuple[str, dict[str, Any]]]:
    """Workloads that came from datasets without receipts, by the uuid that they had there."""
    rows = connection.execute(
        "SELECT d.name, w.uuid, w.extra FROM workload w JOIN definition d ON d.id = w.definition_id"
        " WHERE w.extra IS NOT NULL AND d.name IN (SELECT value FROM json_each(?))",
        (json.dumps(list(definitions)),),
    )
    found = {}
    for name, uuid, text in rows:
        extra = json.loads(text)
        found[name, str(extra.get("uuid"))] = (str(uuid), extra)
    return found
