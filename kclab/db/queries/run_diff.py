"""What differs between two runs in what they were given and where they ran."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from kclab.db.queries.run_details import environment_facts

RUN_FIELDS = ("command", "mode", "host", "gpu_uuid", "git_commit", "git_dirty")

ABSENT = "(absent)"
"""Stands for a value that one of the runs does not have at all."""


def run_facts(connection: sqlite3.Connection, run: sqlite3.Row) -> dict[str, dict[str, Any]]:
    """A run's facts by area (`run`, `params`, `environment`, `volatile`), nested keys dotted."""
    environment = environment_facts(connection, int(run["environment_id"]))
    del environment["sha256"]  # equal exactly where all the others are
    return {
        "run": {name: run[name] for name in RUN_FIELDS} | {"argv": json.loads(run["argv"])},
        "params": flattened(json.loads(run["params"])),
        "environment": flattened(environment),
        "volatile": flattened(json.loads(run["volatile"] or "{}")),
    }


def run_differences(
    first: Mapping[str, Mapping[str, Any]],
    second: Mapping[str, Mapping[str, Any]],
    *,
    everything: bool = False,
) -> list[dict[str, Any]]:
    """Rows `area, name, a, b, differs` of two runs' facts: those that differ, or all of them."""
    rows = []
    for area in first:
        for name in [*first[area], *(n for n in second[area] if n not in first[area])]:
            a, b = first[area].get(name, ABSENT), second[area].get(name, ABSENT)
            if everything or a != b:
                rows.append({"area": area, "name": name, "a": a, "b": b, "differs": a != b})
    return rows


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, keys joined by dots; lists and empty objects stay whole.

    >>> flattened({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= flattened(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
