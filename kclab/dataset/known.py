"""What a store already has of a root, asked in a few queries before anything is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kclab.dataset.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class KnownCapture:
    """A receipt that is already in the store."""

    outputs: dict[str, str]
    """Output name to blob."""
    judged: bool
    """A verdict that came with a dataset is stored for it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What one import may take as given; empty when everything is to be read again."""

    captures: Mapping[str, KnownCapture] = field(default_factory=dict)
    """By the receipt's uuid."""
    sources: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """The `extra` of workloads without a receipt, by definition and the uuid they had."""
    absent: frozenset[str] = frozenset()
    """Digests whose bytes the store does not have."""
    blobs: Callable[[Iterable[str]], dict[str, Arrival]] = lambda digests: {}
    """Those of some digests whose bytes the store vouches for."""


def known_captures(connection: sqlite3.Connection, uuids: Iterable[str]) -> dict[str, KnownCapture]:
    """Those of `uuids` that the store has."""
    wanted = json.dumps(list(uuids))
    rows = connection.execute(
        "SELECT c.uuid, EXISTS(SELECT 1 FROM replay r WHERE r.capture_id = c.id AND r.imported)"
        " FROM capture c WHERE c.uuid IN (SELECT value FROM json_each(?))",
        (wanted,),
    )
    found = {uuid: KnownCapture({}, bool(judged)) for uuid, judged in rows}
    outputs = connection.execute(
        "SELECT c.uuid, o.name, o.blob_sha256 FROM capture c JOIN capture_output o"
        " ON o.capture_id = c.id WHERE c.uuid IN (SELECT value FROM json_each(?))",
        (wanted,),
    )
    for uuid, name, sha256 in outputs:
        found[uuid].outputs[name] = sha256
    return found


def known_blobs(connection: sqlite3.Connection, digests: Iterable[str]) -> dict[str, Arrival]:
    """Those of `digests` whose bytes the store vouches for."""
    rows = connection.execute(
        "SELECT sha256, dtype, shape, nbytes FROM blob WHERE present"
        " AND sha256 IN (SELECT value FROM json_each(?))",
        (json.dumps(list(digests)),),
    )
    return {row[0]: Arrival(row[0], row[1], tuple(json.loads(row[2])), row[3]) for row in rows}


def absent_blobs(connection: sqlite3.Connection) -> frozenset[str]:
    """The digests whose bytes are elsewhere; a root that has them now is read again."""
    return frozenset(
        row[0] for row in connection.execute("SELECT sha256 FROM blob WHERE NOT present")
    )


def known_sources(
    connection: sqlite3.Connection, definitions: Iterable[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Workloads that came from datasets without receipts, by the uuid that they had there."""
    rows = connection.execute(
        "SELECT d.name, w.uuid, w.extra FROM workload w JOIN definition d ON d.id = w.definition_id"
        " WHERE w.extra IS NOT NULL AND d.name IN (SELECT value FROM json_each(?))",
        (json.dumps(list(definitions)),),
    )
    found = {}
    for name, uuid, text in rows:
        extra = json.loads(text)
        found[name, str(extra.get("uuid"))] = {**extra, "workload": uuid}
    return found
