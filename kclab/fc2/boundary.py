"""Boundaries: a GEMM captured or made; found among the stored ones, and loaded again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kclab.core.errors import BadUsage, NothingMatched
from kclab.db.store import Store
from kclab.fc2.operands import Operands, make_operands, synthetic_inputs
from kclab.fc2.problem import Precision, Problem
from kclab.fc2.producer import swiglu

if TYPE_CHECKING:
    from torch import Tensor

SYNTHETIC = "synthetic"
SURROUNDINGS = ("gate_up", "block_input", "block_output")


@dataclass(slots=True)
class Boundary:
    """A problem with its tensors in memory."""

    problem: Problem
    operands: Operands
    gate_up: Tensor | None = None
    """The producer's input, [M, 2K] bfloat16, gate first."""
    block_input: Tensor | None = None
    block_output: Tensor | None = None
    source: str = SYNTHETIC
    block: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """How to make it again; for synthetic ones the seed and the kind of device."""


@dataclass(frozen=True, slots=True)
class BoundaryRow:
    """A stored boundary, without its tensors."""

    id: int
    workload_id: int
    workload_uuid: str
    problem: Problem
    source: str
    block: int | None
    recipe: Mapping[str, Any]


def synthetic_boundary(problem: Problem, seed: int, device: str) -> Boundary:
    """A boundary of stated size with random content."""
    gate_up, weight = synthetic_inputs(problem, seed, device)
    operands = make_operands(problem, swiglu(gate_up), weight)
    kind = device.split(":")[0]
    return Boundary(problem, operands, gate_up, recipe={"seed": seed, "generator": kind})


SELECT = (
    "SELECT b.id, b.workload_id, w.uuid, b.precision, b.m, b.n, b.k, b.fast_accumulation,"
    " b.source, b.block, b.recipe, b.gate_up_sha256, b.block_input_sha256, b.block_output_sha256"
    " FROM fc2_boundary b JOIN workload w ON w.id = b.workload_id"
)


def find_boundary(connection: sqlite3.Connection, text: str) -> BoundaryRow:
    """The boundary whose workload uuid starts so; `last` is the newest.

    Raises NothingMatched or BadUsage (more than one).
    """
    if text == "last":
        rows = connection.execute(f"{SELECT} ORDER BY b.id DESC LIMIT 1").fetchall()
    else:
        rows = connection.execute(
            f"{SELECT} WHERE w.uuid >= ? AND w.uuid < ? || 'g' LIMIT 2", (text, text)
        ).fetchall()
    if not rows:
        raise NothingMatched(
            f"no boundary {text!r}; make one with kclab fc2 capture --shape MxNxK."
        )
    if len(rows) > 1:
        raise BadUsage(f"boundary {text!r} is ambiguous; write more of its uuid.")
    return _row(rows[0])


def _row(row: sqlite3.Row) -> BoundaryRow:
    problem = Problem(
        Precision(row["precision"]), row["m"], row["n"], row["k"], bool(row["fast_accumulation"])
    )
    return BoundaryRow(
        row["id"],
        row["workload_id"],
        row["uuid"],
        problem,
        row["source"],
        row["block"],
        json.loads(row["recipe"] or "{}"),
    )


def digests_of(connection: sqlite3.Connection, row: BoundaryRow) -> dict[str, str]:
    """The blobs of a stored boundary's operands and surroundings; empty where a recipe is kept."""
    stored = connection.execute(
        "SELECT name, blob_sha256 FROM workload_input WHERE workload_id = ?"
        " AND blob_sha256 IS NOT NULL",
        (row.workload_id,),
    ).fetchall()
    if not stored:
        return {}
    around = connection.execute(
        "SELECT gate_up_sha256, block_input_sha256, block_output_sha256 FROM fc2_boundary"
        " WHERE id = ?",
        (row.id,),
    ).fetchone()
    surroundings = zip(SURROUNDINGS, tuple(around), strict=True)
    return dict(map(tuple, stored)) | {name: sha for name, sha in surroundings if sha is not None}


def load_boundary(
    store: Store, connection: sqlite3.Connection, row: BoundaryRow, device: str
) -> Boundary:
    """A stored boundary with its tensors on a device.

    Raises BlobAbsent, or BadUsage where a recipe needs another kind of device.
    """
    from kclab.blob.tensors import to_tensor

    stored = digests_of(connection, row)
    if not stored:
        return make_again(row, device)
    return with_tensors(
        row, {name: to_tensor(store.blobs.read(sha256), device) for name, sha256 in stored.items()}
    )


def with_tensors(row: BoundaryRow, tensors: Mapping[str, Tensor]) -> Boundary:
    """A stored boundary of its tensors, named as in `digests_of`."""
    around = {name: tensors.get(name) for name in SURROUNDINGS}
    operands = {name: tensor for name, tensor in tensors.items() if name not in around}
    return Boundary(
        row.problem,
        Operands(**operands),
        **around,
        source=row.source,
        block=row.block,
        recipe=row.recipe,
    )


def make_again(row: BoundaryRow, device: str) -> Boundary:
    """A synthetic boundary after its recipe. Raises BadUsage on another kind of device."""
    kind = row.recipe.get("generator", "cpu")
    if kind != device.split(":")[0]:
        raise BadUsage(
            f"boundary {row.workload_uuid[:8]} was made by a random generator on {kind}, which "
            f"gives other bytes on {device}; make it here with kclab fc2 capture --shape "
            f"{row.problem.shape}."
        )
    return synthetic_boundary(row.problem, int(row.recipe["seed"]), device)
