"""Storing a boundary: its tensors as blobs, and itself as a workload of its definition."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.digest import canonical_json, tensor_digest, workload_uuid
from kclab.core.families import FAMILIES
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.db.rows import BlobRow, InputValue, add_blobs, add_definition, add_workload
from kclab.db.store import Store
from kclab.fc2.boundary import SURROUNDINGS, SYNTHETIC, Boundary
from kclab.fc2.operands import Operands
from kclab.fc2.problem import Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.blob.batch import BlobBatch

STORED_BYTES = 64 << 20
"""Synthetic boundaries up to this size keep their tensors; larger ones keep how to make them."""

STORED_AT_ONCE = 4
"""Tensors of a boundary that are hashed and written side by side."""


def store_boundary(store: Store, connection: sqlite3.Connection, boundary: Boundary) -> int:
    """The id of the boundary's row; the same content is one row."""
    blobs = _store_tensors(store, _tensors(boundary)) if _keeps_tensors(boundary) else {}
    sha256 = {name: blob.sha256 for name, blob in blobs.items()}
    with writing(connection):
        add_blobs(connection, list(blobs.values()), verified_us=now_us())
        return _insert(connection, boundary, _inputs(boundary, sha256), sha256)


def _tensors(boundary: Boundary) -> dict[str, Tensor]:
    around = {name: getattr(boundary, name) for name in SURROUNDINGS}
    return boundary.operands.tensors() | {n: t for n, t in around.items() if t is not None}


def _store_tensors(store: Store, tensors: Mapping[str, Tensor]) -> dict[str, BlobRow]:
    """Blobs of tensors, durable; several at once, since hashing gigabytes takes seconds each."""
    batch = store.blobs.batch()
    with ThreadPoolExecutor(STORED_AT_ONCE) as pool:
        found = pool.map(lambda tensor: _store_tensor(store, batch, tensor), tensors.values())
        rows = dict(zip(tensors, found, strict=True))
    batch.sync()
    return rows


def _store_tensor(store: Store, batch: BlobBatch, tensor: Tensor) -> BlobRow:
    from kclab.blob.tensors import to_bytes

    plain = to_bytes(tensor)
    sha256 = tensor_digest(plain.dtype, plain.shape, plain.data)
    with closing(store.read()) as connection:
        row = connection.execute("SELECT 1 FROM blob WHERE sha256 = ?", (sha256,)).fetchone()
    batch.add(plain.dtype, plain.shape, plain.data, sha256, known=row is not None)
    return BlobRow(sha256, plain.dtype, plain.shape, memoryview(plain.data).nbytes)


def _keeps_tensors(boundary: Boundary) -> bool:
    tensors = [*boundary.operands.tensors().values()]
    if boundary.gate_up is not None:
        tensors.append(boundary.gate_up)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return boundary.source != SYNTHETIC or size <= STORED_BYTES


def _inputs(boundary: Boundary, stored: Mapping[str, str]) -> dict[str, InputValue]:
    """The workload's inputs: blobs where `stored` has their digests, else a recipe."""
    problem = boundary.problem
    tensors = boundary.operands.tensors()
    if stored:
        found = {name: InputValue(blob=stored[name]) for name in tensors}
    else:
        recipe = json.dumps({"kclab": "synthetic", **boundary.recipe, "shape": problem.shape})
        found = {name: InputValue(random=recipe) for name in tensors}
    return found | _scalars(problem)


def _scalars(problem: Problem) -> dict[str, InputValue]:
    found = {}
    if problem.precision is not Precision.BF16:
        found["rows"] = InputValue(scalar=json.dumps(problem.m))
    if problem.precision is Precision.FP8:
        found["fast_accumulation"] = InputValue(scalar=json.dumps(problem.fast_accumulation))
    return found


def _insert(
    connection: sqlite3.Connection,
    boundary: Boundary,
    inputs: Mapping[str, InputValue],
    stored: Mapping[str, str],
) -> int:
    problem = boundary.problem
    family = f"fc2_{problem.precision.family}"
    definition = FAMILIES[family].make(n=problem.n, k=problem.k)
    definition_id = add_definition(connection, definition.body, family=family, origin="family")
    ordered = {name: inputs[name] for name in definition.inputs}
    uuid = workload_uuid(definition.name, {n: _identity(connection, v) for n, v in ordered.items()})
    axes = {"M": problem.m_padded}
    workload_id, _ = add_workload(connection, uuid, definition_id, axes, ordered)
    connection.execute(
        "INSERT INTO fc2_boundary(workload_id, precision, m, m_padded, n, k, fast_accumulation,"
        " source, block, gate_up_sha256, block_input_sha256, block_output_sha256, recipe, added_us)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(workload_id) DO NOTHING",
        (
            workload_id,
            problem.precision.value,
            problem.m,
            problem.m_padded,
            problem.n,
            problem.k,
            int(problem.fast_accumulation),
            boundary.source,
            boundary.block,
            stored.get("gate_up"),
            stored.get("block_input"),
            stored.get("block_output"),
            canonical_json(dict(boundary.recipe)),
            now_us(),
        ),
    )
    row = connection.execute("SELECT id FROM fc2_boundary WHERE workload_id = ?", (workload_id,))
    return int(row.fetchone()[0])


def imported_boundary(
    connection: sqlite3.Connection,
    problem: Problem,
    identity: Mapping[str, Any],
    block: int | None,
) -> int:
    """The id of a boundary that is known by description only, without tensors."""
    described = InputValue(random=json.dumps({"kclab": "imported", **identity}))
    names = FAMILIES[f"fc2_{problem.precision.family}"].make(n=problem.n, k=problem.k).inputs
    inputs = {name: described for name, spec in names.items() if spec.shape is not None}
    inputs |= _scalars(problem)
    empty = torch.empty(0)
    boundary = Boundary(
        problem, Operands(empty, empty), source="imported", block=block, recipe=identity
    )
    return _insert(connection, boundary, inputs, {})


def _identity(connection: sqlite3.Connection, value: InputValue) -> dict[str, Any]:
    if value.blob is not None:
        row = connection.execute("SELECT dtype, shape FROM blob WHERE sha256 = ?", (value.blob,))
        dtype, shape = row.fetchone()
        return {"blob": value.blob, "dtype": dtype, "shape": json.loads(shape)}
    if value.scalar is not None:
        return {"scalar": json.loads(value.scalar)}
    return {"random": json.loads(value.random or "null")}
