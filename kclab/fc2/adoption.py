"""FC2 calls captured in a running engine, as boundaries that a sweep takes."""

from __future__ import annotations

import json
import re
import sqlite3

from kclab.core.digest import canonical_json
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.fc2.problem import Precision

CAPTURED = (
    "SELECT w.id, d.name, w.axes,"
    " (SELECT scalar FROM workload_input i WHERE i.workload_id = w.id AND i.name = 'rows') AS rows,"
    " (SELECT scalar FROM workload_input i WHERE i.workload_id = w.id"
    "  AND i.name = 'fast_accumulation') AS fast,"
    " (SELECT c.module_path FROM capture c WHERE c.workload_id = w.id ORDER BY c.id LIMIT 1)"
    "  AS module_path"
    " FROM workload w JOIN definition d ON d.id = w.definition_id"
    " WHERE d.op_type = 'fc2' AND EXISTS (SELECT 1 FROM capture c WHERE c.workload_id = w.id)"
    " AND NOT EXISTS (SELECT 1 FROM fc2_boundary b WHERE b.workload_id = w.id) ORDER BY w.id"
)
PRECISIONS = {precision.family: precision for precision in Precision}


def adopt_captured(connection: sqlite3.Connection) -> int:
    """Make each captured workload of an FC2 definition a boundary; returns how many are new.

    Such a boundary has neither the producer's input nor the block's, so it is raced as the GEMM
    alone.
    """
    found = connection.execute(CAPTURED).fetchall()
    if found:
        with writing(connection):
            for row in found:
                _adopt(connection, row)
    return len(found)


def _adopt(connection: sqlite3.Connection, row: sqlite3.Row) -> None:
    named = re.fullmatch(r"fc2_(\w+)_n(\d+)_k(\d+)", row["name"])
    if named is None or named[1] not in PRECISIONS:
        return
    padded = int(json.loads(row["axes"])["M"])
    rows = padded if row["rows"] is None else int(json.loads(row["rows"]))
    connection.execute(
        "INSERT INTO fc2_boundary(workload_id, precision, m, m_padded, n, k, fast_accumulation,"
        " source, block, recipe, added_us) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(workload_id) DO NOTHING",
        (
            row["id"],
            PRECISIONS[named[1]].value,
            rows,
            padded,
            int(named[2]),
            int(named[3]),
            int(json.loads(row["fast"] or "false")),
            "captured",
            _block(row["module_path"]),
            canonical_json({"module": row["module_path"]}),
            now_us(),
        ),
    )


def _block(module_path: str | None) -> int | None:
    """24 of `blocks.24.mlp`."""
    numbered = re.search(r"\.(\d+)\.", f".{module_path or ''}.")
    return None if numbered is None else int(numbered[1])
