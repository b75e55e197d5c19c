"""A store with one row of every first-schema table, to be upgraded, checked and cleaned."""

from __future__ import annotations

from kclab.blob.folder import BlobFolder
from kclab.db.connection import writing
from kclab.db.rows import (
    BlobRow,
    CaptureRow,
    InputValue,
    add_blobs,
    add_capture,
    add_definition,
    add_error,
    add_request,
    add_workload,
)
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store
from kclab.db.verdicts import OracleVerdict, OutputVerdict, ReplayRow, add_replay

BODY = {
    "name": "double",
    "op_type": "toy",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"out": {"shape": ["N"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}


def add_bytes(blobs: BlobFolder, data: bytes) -> BlobRow:
    """Four-byte floats, written and synced; the row to insert."""
    batch = blobs.batch()
    shape = (len(data) // 4,)
    row = BlobRow(batch.add("float32", shape, data), "float32", shape, len(data))
    batch.sync()
    return row


def add_example(active: ActiveRun, number: int = 1) -> tuple[int, int]:
    """(workload id, capture id) of a captured and replayed `double` of `number` elements."""
    store, connection = active.store, active.connection
    inputs = add_bytes(store.blobs, bytes(range(4)) * number)
    outputs = add_bytes(store.blobs, bytes(range(4, 8)) * number)
    with writing(connection):
        definition = add_definition(connection, BODY, origin="test")
        add_blobs(connection, [inputs, outputs])
        workload, _ = add_workload(
            connection,
            f"workload-{number}",
            definition,
            {"N": number},
            {"x": InputValue(blob=inputs.sha256), "s": InputValue(scalar="2.0")},
        )
        request = add_request(connection, active.id, f"r{number}", {"prompt": "a"}, 1)
        receipt = CaptureRow(
            uuid=f"{active.uuid}-{number}",
            operation="toy",
            site=f'{{"definition":"double","n":{number}}}',
            captured_us=2,
            receipt={"model": "toy"},
            outputs=[("out", outputs.sha256)],
            step=0,
        )
        capture, _ = add_capture(connection, active.id, workload, receipt, request_pk=request)
        add_replay(connection, active.id, _verdict(workload, capture, definition))
        add_error(connection, active.id, "test", "kind", "message", context={"a": 1})
    return workload, capture


def _verdict(workload: int, capture: int, definition: int) -> ReplayRow:
    output = OutputVerdict("out", "float32", True, "allclose", 3, 0, worst_index=[0], rms=0.0)
    return ReplayRow(
        subject="workload",
        definition="double",
        status="passed",
        started_us=3,
        workload_id=workload,
        capture_id=capture,
        definition_id=definition,
        outputs=[output],
        oracle=[OracleVerdict("neither", engine_max_ulp=0.5)],
    )


def fill(store: Store, examples: int = 1) -> None:
    """One finished run with that many examples, a tag, workers, counts and a measurement."""
    with run(store, "capture", {"steps": [0]}) as active:
        for number in range(1, examples + 1):
            add_example(active, number)
        with writing(active.connection) as connection:
            rest = """
            INSERT INTO run_tag VALUES (:run, 'good');
            INSERT INTO capture_worker VALUES (:run, 'h:1:2', 0, 'toy', 1, 2, NULL);
            INSERT INTO capture_count VALUES (:run, 'h:1:2', 'double', 'seen', 3);
            INSERT INTO measurement(id, run_id, name, pairs) VALUES (1, :run, 'gemm', 1);
            INSERT INTO timing_sample VALUES (1, 0, 0, 'A', 1.5);
            INSERT INTO timing_sample VALUES (1, 0, 1, 'B', 1.25);
            INSERT INTO foreign_record VALUES (NULL, 'solution', 'ab', NULL, NULL, 'p', '{}', :run)
            """
            for statement in filter(None, map(str.strip, rest.split(";"))):
                parameters = {"run": active.id} if ":run" in statement else {}
                connection.execute(statement, parameters)
