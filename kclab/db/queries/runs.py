"""Finding and listing runs."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import BadUsage, NothingMatched
from kclab.db.queries.selection import where
from kclab.db.runs import effective_status

SORTS = {
    "started": "r.started_us",
    "finished": "r.finished_us",
    "took": "coalesce(r.finished_us, r.heartbeat_us) - r.started_us",
    "command": "r.command",
    "status": "r.status",
}
"""What `runs list --sort` takes, and the SQL that it means."""

LISTED = """
    r.uuid, r.command, r.mode, r.status, r.started_us, r.finished_us,
    coalesce(r.finished_us, r.heartbeat_us) - r.started_us AS took_us, r.exit_code, r.summary,
    (SELECT json_group_array(tag) FROM run_tag t WHERE t.run_id = r.id) AS tags, r.note,
    r.host, r.git_commit, r.git_dirty, e.gpu, e.torch, substr(e.sha256, 1, 12) AS environment
"""

SEARCHED = ("r.uuid", "r.summary", "r.note", "r.host", "r.argv")
"""Where a filter's text is looked for."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; a field left alone filters nothing."""

    commands: Sequence[str] = ()
    statuses: Sequence[str] = ()
    """Effective ones: a killed run counts as `stale`."""
    tags: Sequence[str] = ()
    """A run must have all of them."""
    since_us: int | None = None
    until_us: int | None = None
    """Exclusive."""
    text: str = ""
    """Must occur in the uuid, summary, note, host or what was typed."""
    sort: str = "started"
    """A key of SORTS."""
    ascending: bool = False
    limit: int | None = None


def list_runs(connection: sqlite3.Connection, wanted: RunFilter) -> list[dict[str, Any]]:
    """Runs in the asked order, newest first by default; `status` is the effective one."""
    stale = stale_runs(connection)
    conditions, values = run_conditions(wanted, stale)
    direction = "ASC" if wanted.ascending else "DESC"
    rows = connection.execute(
        f"SELECT r.id, {LISTED} FROM run r JOIN environment e ON e.id = r.environment_id"
        f" {where(conditions)} ORDER BY {SORTS[wanted.sort]} {direction}, r.id {direction} LIMIT ?",
        (*values, -1 if wanted.limit is None else wanted.limit),
    )
    return [listed_run(row, stale) for row in rows]


def count_runs(connection: sqlite3.Connection, wanted: RunFilter) -> int:
    """How many runs the filter finds, its limit aside."""
    conditions, values = run_conditions(wanted, stale_runs(connection))
    row = connection.execute(f"SELECT count(*) FROM run r {where(conditions)}", values).fetchone()
    return int(row[0])


def stale_runs(connection: sqlite3.Connection) -> frozenset[int]:
    """Ids of the runs whose row says `running` but whose process is gone."""
    rows = connection.execute(
        "SELECT id, status, host, boot_id, pid, process_started_us, heartbeat_us FROM run"
        " WHERE status = 'running'"
    )
    return frozenset(int(row["id"]) for row in rows if effective_status(row) == "stale")


def run_conditions(wanted: RunFilter, stale: frozenset[int]) -> tuple[list[str], list[Any]]:
    """SQL conditions on `r`, a run, with their values."""
    parts: list[str] = []
    values: list[Any] = []
    if wanted.commands:
        parts.append("r.command IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(wanted.commands)))
    if wanted.statuses:
        parts.append(
            "CASE WHEN r.id IN (SELECT value FROM json_each(?)) THEN 'stale' ELSE r.status END"
            " IN (SELECT value FROM json_each(?))"
        )
        values += [json.dumps(sorted(stale)), json.dumps(list(wanted.statuses))]
    for tag in wanted.tags:
        parts.append("r.id IN (SELECT run_id FROM run_tag WHERE tag = ?)")
        values.append(tag)
    if wanted.since_us is not None:
        parts.append("r.started_us >= ?")
        values.append(wanted.since_us)
    if wanted.until_us is not None:
        parts.append("r.started_us < ?")
        values.append(wanted.until_us)
    if wanted.text:
        # In half the time of instr over lower; A is a, too, but Ä is not ä.
        parts.append("(" + " OR ".join(f"{name} LIKE ? ESCAPE '!'" for name in SEARCHED) + ")")
        literal = re.sub(r"([!%_])", r"!\1", wanted.text)
        values += [f"%{literal}%"] * len(SEARCHED)
    return parts, values


def listed_run(row: sqlite3.Row | Mapping[str, Any], stale: frozenset[int]) -> dict[str, Any]:
    """A row of LISTED and the run's id as listings show it: effective status, tags as a list."""
    fields = dict(row)
    if fields.pop("id") in stale:
        fields["status"] = "stale"
    if fields["status"] == "running":
        fields["finished_us"] = None
    fields["tags"] = sorted(json.loads(fields["tags"]))
    return fields


def find_run(connection: sqlite3.Connection, text: str) -> sqlite3.Row:
    """The run row with this uuid, a uuid that begins with `text`, or the newest for `last`.

    Raises NothingMatched, or BadUsage where several begin so.
    """
    if text == "last":
        row: sqlite3.Row | None = connection.execute(
            "SELECT * FROM run ORDER BY started_us DESC, id DESC LIMIT 1"
        ).fetchone()
        if row is None:
            raise NothingMatched("there is no run yet.")
        return row
    return find_by_prefix(connection, "run", text)


def find_by_prefix(connection: sqlite3.Connection, table: str, text: str) -> sqlite3.Row:
    """The row of `table` whose uuid begins with `text`.

    Raises NothingMatched, or BadUsage where several begin so (naming some) or `text` is no uuid.
    """
    prefix = text.lower()
    if not prefix or set(prefix) - set("0123456789abcdef-"):
        raise BadUsage(f'"{text}" is not the uuid of a {table}, nor the beginning of one.')
    rows: list[sqlite3.Row] = connection.execute(
        f"SELECT * FROM {table} WHERE uuid >= ? AND uuid < ? ORDER BY uuid LIMIT 4",
        (prefix, f"{prefix}g"),
    ).fetchall()
    if not rows:
        raise NothingMatched(f"no {table} {text}; see `kclab {table}s list`.")
    if len(rows) > 1 and rows[0]["uuid"] != prefix:
        some = ", ".join(row["uuid"] for row in rows[:3])
        more = ", …" if len(rows) > 3 else ""
        raise BadUsage(f"{text} is the beginning of several {table}s ({some}{more}); write more.")
    return rows[0]
