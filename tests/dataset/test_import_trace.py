"""Importing FlashInfer-Trace datasets: no receipts, bytes behind Git LFS."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions, ImportSummary, RootRefused
from kclab.db.store import Store
from tests.dataset.builder import VAR, RootBuilder, Tensor, definition, floats, safetensors
from tests.dataset.conftest import Rows

REFERENCE = "def run(a, b, scale):\n    return a + b * scale\n"


class TraceSet:
    """A dataset in the layout that flashinfer-bench writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.builder = RootBuilder(root)
        vector = (["N"], "float32")
        self.builder.define(
            definition(
                "axpy",
                {"N": VAR},
                {"a": vector, "b": vector, "scale": (None, "float32")},
                {"out": vector},
                REFERENCE,
            )
        )

    def file(self, uuid: str, **tensors: Tensor) -> str:
        """One file with a key for each tensor, as flashinfer-bench dumps them."""
        header, data = {}, b""
        for key, value in tensors.items():
            header[key] = value.entry(len(data))
            data += value.raw
        return self.write(uuid, safetensors(header, data))

    def write(self, uuid: str, content: bytes) -> str:
        text = f"blob/workloads/toy/axpy/axpy_{uuid}.safetensors"
        path = self.root / text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"./{text}"

    def add(self, uuid: str, a: Any, b: Any, size: int = 2, **extra: Any) -> None:
        inputs = {"a": a, "b": b, "scale": {"type": "scalar", "value": 2.0}}
        workload = {"uuid": uuid, "axes": {"N": size}, "inputs": inputs}
        row = {"definition": "axpy", "solution": None, "workload": workload, "evaluation": None}
        self.builder.append(self.root / "workloads/toy/axpy.jsonl", {**row, **extra})

    def add_stored(self, uuid: str, a: Tensor, b: Tensor, **extra: Any) -> None:
        text = self.file(uuid, a=a, b=b)
        self.add(uuid, key(text, "a"), key(text, "b"), a.shape[0], **extra)


def key(text: str, name: str) -> dict[str, str]:
    return {"type": "safetensors", "path": text, "tensor_key": name}


@pytest.fixture
def trace(tmp_path: Path) -> TraceSet:
    return TraceSet(tmp_path / "trace")


def added(summary: ImportSummary) -> tuple[int, int, int]:
    return summary.workloads, summary.captures, summary.blobs


def test_many_keys_of_a_file_become_a_blob_each(store: Store, trace: TraceSet, rows: Rows) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4), Cacheable=True)
    assert added(import_path(store, trace.root)) == (1, 0, 2)
    for value in (floats(1, 2), floats(3, 4)):
        assert bytes(store.blobs.read(value.digest()).data) == value.raw
    assert rows("SELECT scalar FROM workload_input WHERE name = 'scale'") == [("2.0",)]
    extra = json.loads(rows("SELECT extra FROM workload")[0][0])
    assert (extra["uuid"], extra["row"]) == ("one", {"Cacheable": True})


def test_random_inputs_are_kept_as_they_are(store: Store, trace: TraceSet, rows: Rows) -> None:
    trace.add("one", {"type": "random"}, {"type": "random", "init": "cumsum"})
    trace.add("two", {"type": "random"}, {"type": "random"})
    assert added(import_path(store, trace.root)) == (2, 0, 0)
    kept = rows("SELECT random FROM workload_input WHERE name = 'b'")
    assert json.loads(kept[0][0]) == {"type": "random", "init": "cumsum"}


def test_a_second_import_reads_no_file(store: Store, trace: TraceSet) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    trace.add("two", {"type": "random"}, {"type": "random"})
    import_path(store, trace.root)
    blob = next(trace.root.rglob("*.safetensors"))
    status = blob.stat()
    with blob.open("r+b") as file:
        file.write(b"\xff" * 8)  # whoever reads it finds it damaged
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    summary = import_path(store, trace.root)
    assert (added(summary), summary.known) == ((0, 0, 0), 2)


def test_a_changed_file_is_read_again(store: Store, trace: TraceSet) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    import_path(store, trace.root)
    trace.file("one", a=floats(5, 6), b=floats(3, 4))
    assert added(import_path(store, trace.root)) == (1, 0, 1)


def test_repeated_uuids_are_skipped_or_a_conflict(store: Store, trace: TraceSet) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    assert added(import_path(store, trace.root)) == (1, 0, 2)
    trace.add("one", {"type": "random"}, {"type": "random"})
    with pytest.raises(RootRefused, match=r"axpy\.jsonl:3: one again"):
        import_path(store, trace.root)


def test_git_lfs_pointers_become_absent_blobs_with_the_way_to_fetch_them(
    store: Store, trace: TraceSet, rows: Rows
) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    path = next(trace.root.rglob("*.safetensors"))
    content = path.read_bytes()
    oid = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
    path.write_text(pointer)
    summary = import_path(store, trace.root)
    assert (summary.workloads, summary.blobs, summary.absent) == (1, 0, 2)
    relative = path.relative_to(trace.root).as_posix()
    assert f"git lfs pull --include '{relative}'" in summary.warnings[0]
    assert rows("SELECT DISTINCT present, dtype, shape FROM blob") == [(0, "float32", "[2]")]
    assert import_path(store, trace.root).added == 0


def test_fetched_bytes_take_the_place_of_their_pointer(
    store: Store, trace: TraceSet, rows: Rows
) -> None:
    trace.add_stored("one", floats(1, 2), floats(3, 4))
    path = next(trace.root.rglob("*.safetensors"))
    content = path.read_bytes()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n")
    import_path(store, trace.root)
    path.write_bytes(content)
    import_path(store, trace.root)
    assert rows("SELECT count(*) FROM workload") == [(1,)]
    assert rows("SELECT present, count(*) FROM blob GROUP BY present") == [(1, 2)]


def test_a_pointer_in_a_capture_root_keeps_the_digest_of_its_name(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    digest = floats(1).digest()
    path = source.root / f"blob/workloads/double/{digest}.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n")
    import_path(store, source.report().root)
    assert rows("SELECT sha256 FROM blob WHERE NOT present") == [(digest,)]
    path.write_bytes(floats(1).file())
    import_path(store, source.root)
    assert rows("SELECT count(*) FROM blob WHERE present") == [(2,)]
    store.blobs.verify(digest)


@pytest.mark.parametrize("folder", ["traces/toy", "traces/somebody/toy"])
def test_solutions_and_traces_of_both_layouts_are_kept(
    store: Store, trace: TraceSet, rows: Rows, folder: str
) -> None:
    trace.add("one", {"type": "random"}, {"type": "random"})
    solution = {"name": "fast", "definition": "axpy", "author": "somebody"}
    (trace.root / "solutions/somebody").mkdir(parents=True)
    (trace.root / "solutions/somebody/fast.json").write_text(json.dumps(solution))
    line = {"definition": "axpy", "solution": "fast", "workload": {"uuid": "one"}}
    trace.builder.append(trace.root / folder / "axpy.jsonl", line)
    assert import_path(store, trace.root).foreign == 2
    kept = rows("SELECT kind, definition, workload_uuid, path FROM foreign_record ORDER BY id")
    assert kept == [
        ("solution", "axpy", None, "solutions/somebody/fast.json"),
        ("trace", "axpy", "one", f"{folder}/axpy.jsonl"),
    ]
    assert import_path(store, trace.root).foreign == 0


def test_a_bad_trace_line_is_named(store: Store, trace: TraceSet) -> None:
    trace.add("one", {"type": "random"}, {"type": "random"})
    path = trace.root / "traces/toy/axpy.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('nonsense\n{"definition": "axpy"}\n')
    with pytest.raises(RootRefused, match=r"traces/toy/axpy\.jsonl:1: not JSON"):
        import_path(store, trace.root)
    assert import_path(store, trace.root, ImportOptions(partial=True)).foreign == 1


def test_a_stray_file_among_the_definitions_is_a_warning(store: Store, trace: TraceSet) -> None:
    trace.add("one", {"type": "random"}, {"type": "random"})
    (trace.root / "definitions/notes.json").write_text("[1, 2]")
    summary = import_path(store, trace.root)
    assert summary.workloads == 1
    assert "notes.json" in summary.warnings[0]


def test_an_optional_input_may_be_missing(store: Store, tmp_path: Path) -> None:
    trace = TraceSet(tmp_path / "optional")
    path = trace.root / "definitions/toy/axpy.json"
    body = json.loads(path.read_text())
    body["inputs"]["b"]["optional"] = True
    path.write_text(json.dumps(body))
    workload = {
        "uuid": "one",
        "axes": {"N": 2},
        "inputs": {"a": {"type": "random"}, "scale": {"type": "scalar", "value": 1.0}},
    }
    row = {"definition": "axpy", "workload": workload}
    trace.builder.append(trace.root / "workloads/toy/axpy.jsonl", row)
    assert import_path(store, trace.root).workloads == 1
