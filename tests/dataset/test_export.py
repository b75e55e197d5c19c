"""Exports: what the format holds is there, what it cannot hold is named, all of it comes back."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.blob.folder import read_tensor
from kclab.core.definition_body import TRACE_DTYPES
from kclab.core.errors import (
    BadUsage,
    BlobDamaged,
    DatabaseMissing,
    EnvironmentLacking,
    NothingMatched,
)
from kclab.core.families import FAMILIES
from kclab.dataset import read_root
from kclab.dataset.export_rows import Selection, copy_rows
from kclab.dataset.exporting import export_flashinfer_trace, export_rows
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions
from kclab.db.store import Store
from kclab.replay import untrusted
from tests.dataset.builder import CODES, VAR, RootBuilder, definition, floats, tensor
from tests.dataset.conftest import Rows
from tests.dataset.test_import_store import contents, last_run


@pytest.fixture
def filled(store: Store, source: RootBuilder) -> Store:
    """A store with a capture of `double` whose receipt tells a lot."""
    source.double(
        1,
        2,
        request={"prompt": "a secret teapot"},
        server_command=["serve", "--model-path", "/home/somebody/model"],
        host="workstation-7",
        module_path="blocks.0.to_q",
    )
    import_path(store, source.report().root)
    return store


@pytest.fixture
def empty(tmp_path: Path, empty_database: Path) -> Store:
    database = tmp_path / "empty" / "kclab.db"
    database.parent.mkdir()
    shutil.copyfile(empty_database, database)
    return Store.at(database)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def all_text(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def test_an_export_has_what_the_format_knows(filled: Store, tmp_path: Path) -> None:
    summary = export_flashinfer_trace(filled, tmp_path / "out")
    assert (summary.definitions, summary.workloads, summary.captures) == (1, 1, 1)
    body = json.loads((tmp_path / "out/definitions/toy/double.json").read_text())
    assert (body["name"], body["op_type"]) == ("double", "toy")
    row = lines(tmp_path / "out/workloads/toy/double.jsonl")[0]
    assert (row["solution"], row["evaluation"]) == (None, None)
    assert row["workload"]["axes"] == {"N": 2}
    descriptor = row["workload"]["inputs"]["x"]
    exported = read_tensor(tmp_path / "out" / descriptor["path"], descriptor["tensor_key"])
    assert bytes(exported.data) == floats(1, 2).raw
    receipt = lines(tmp_path / "out/captures.jsonl")[0]
    assert receipt["uuid"] == row["workload"]["uuid"]
    assert (tmp_path / "out" / receipt["expected_output"]["out"]["path"]).is_file()


@pytest.mark.parametrize("export", [export_flashinfer_trace, export_rows])
def test_an_exports_run_says_what_went_where(
    filled: Store, tmp_path: Path, rows: Rows, export: Callable[[Store, Path], object]
) -> None:
    export(filled, tmp_path / "out")
    ((summary,),) = rows("SELECT summary FROM run WHERE command = 'export'")
    assert summary == f"1 workload written to {tmp_path / 'out'}"


def test_an_export_counts_what_an_import_would_refuse(filled: Store, tmp_path: Path) -> None:
    assert export_flashinfer_trace(filled, tmp_path / "judged").unproven == 0
    with closing(filled.write()) as connection, connection:
        connection.execute("DELETE FROM replay")
    assert export_flashinfer_trace(filled, tmp_path / "out").unproven == 1


def test_an_export_can_be_read_in_place(filled: Store, tmp_path: Path) -> None:
    export_flashinfer_trace(filled, tmp_path / "out")
    root = read_root(tmp_path / "out")
    assert not root.refusals and not root.orphans
    assert [list(case.outputs or {}) for case in root.cases] == [["out"]]


def test_an_export_comes_back_lossless(filled: Store, empty: Store, tmp_path: Path) -> None:
    export_flashinfer_trace(filled, tmp_path / "out", with_baseline_solutions=True)
    exporting = last_run(filled)
    import_path(empty, tmp_path / "out")
    assert contents(empty, last_run(empty)) == contents(filled, exporting)
    assert import_path(empty, tmp_path / "out").added == 0


def test_the_shared_files_alone_are_enough_for_the_captures(
    filled: Store, empty: Store, tmp_path: Path, rows: Rows
) -> None:
    export_flashinfer_trace(filled, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/kclab")
    summary = import_path(empty, tmp_path / "out")
    assert (summary.source, summary.captures) == ("merged dataset", 1)
    keys = "SELECT c.uuid, w.uuid, c.captured_us, c.site FROM capture c"
    keys += " JOIN workload w ON w.id = c.workload_id"
    assert rows(keys, at=empty) == rows(keys)


def test_every_dtype_is_exported_and_comes_back(
    store: Store, source: RootBuilder, empty: Store, tmp_path: Path
) -> None:
    for dtype, (_, size) in CODES.items():
        value = tensor(dtype, (8 // size,), bytes([0, 1] * 4))
        ends = ({"x": (["N"], dtype)}, {"out": (["N"], dtype)})
        source.define(definition(dtype, {"N": VAR}, *ends, "def run(x):\n    return x\n"))
        source.add(dtype, {"x": value}, {"out": value}, {"N": 8 // size})
    import_path(store, source.report().root)
    summary = export_flashinfer_trace(store, tmp_path / "out")
    assert (summary.workloads, summary.left_out) == (len(CODES), [])
    for path in (tmp_path / "out/definitions").rglob("*.json"):
        body = json.loads(path.read_text())
        spec = {**body["inputs"], **body["outputs"]}
        assert {entry["dtype"] for entry in spec.values()} <= set(TRACE_DTYPES)
    tags = json.loads((tmp_path / "out/definitions/toy/uint8.json").read_text())["tags"]
    assert "storage:x=uint8" in tags
    exporting = last_run(store)
    import_path(empty, tmp_path / "out")
    assert contents(empty, last_run(empty)) == contents(store, exporting)


def test_a_fitted_reference_computes_what_the_original_did(
    store: Store, source: RootBuilder, tmp_path: Path
) -> None:
    import torch

    raw = bytes([200, 1, 2, 3])
    ends = ({"x": (["N"], "uint8")}, {"y": (["N"], "uint8"), "n": ([], "float32")})
    reference = "def run(x):\n    return x + 50, x.float().sum()\n"
    source.define(definition("bytes", {"N": VAR}, *ends, reference))
    total = tensor("float32", (), floats(206).raw)
    outputs = {"y": tensor("uint8", (4,), bytes([250, 51, 52, 53])), "n": total}
    source.add("bytes", {"x": tensor("uint8", (4,), raw)}, outputs, {"N": 4})
    import_path(store, source.report().root)
    export_flashinfer_trace(store, tmp_path / "out")
    body = json.loads((tmp_path / "out/definitions/toy/bytes.json").read_text())
    scope: dict[str, Any] = {}
    exec(body["reference"], scope)
    y, n = scope["run"](torch.frombuffer(bytearray(raw), dtype=torch.int8))
    assert (y.dtype, y.view(torch.uint8).tolist()) == (torch.int8, [250, 51, 52, 53])
    assert n.item() == 206


def test_a_familys_reference_is_exported_word_for_word_and_so_trusted(
    store: Store, source: RootBuilder, tmp_path: Path
) -> None:
    gemm = FAMILIES["dense_gemm"].make(n=2, k=1, dtype="fp32")
    source.define(dict(gemm.body))
    column = tensor("float32", (2, 1), floats(3, 4).raw)
    product = tensor("float32", (2, 2), floats(9, 12, 12, 16).raw)
    source.add(gemm.name, {"A": column, "W": column}, {"C": product}, {"M": 2})
    import_path(store, source.report().root)
    export_flashinfer_trace(store, tmp_path / "out")
    exported = read_root(tmp_path / "out").definitions.values()
    assert [found.reference for found in exported] == [gemm.reference]
    assert untrusted(exported) == []


def prefix0(source: RootBuilder) -> None:
    axes = {"S": VAR, "P": {"type": "const", "value": 0}, "D": {"type": "const", "value": 2}}
    current, prefix = (["S", "D"], "float32"), (["P", "D"], "float32")
    reference = "import torch\ndef run(q, prefix):\n    return torch.cat([prefix, q])\n"
    ends = ({"q": current, "prefix": prefix}, {"out": current})
    source.define(definition("attend_prefix0", axes, *ends, reference))
    value = tensor("float32", (1, 2), floats(1, 2).raw)
    nothing = tensor("float32", (0, 2), b"")
    source.add("attend_prefix0", {"q": value, "prefix": nothing}, {"out": value}, {"S": 1})


def test_an_input_of_no_rows_is_left_out_and_made_by_the_reference(
    store: Store, source: RootBuilder, empty: Store, tmp_path: Path
) -> None:
    import torch

    prefix0(source)
    import_path(store, source.report().root)
    export_flashinfer_trace(store, tmp_path / "out")
    body = json.loads((tmp_path / "out/definitions/toy/attend_prefix0.json").read_text())
    row = lines(tmp_path / "out/workloads/toy/attend_prefix0.jsonl")[0]
    assert list(body["inputs"]) == list(row["workload"]["inputs"]) == ["q"]
    scope: dict[str, Any] = {}
    exec(body["reference"], scope)
    assert scope["run"](torch.ones(3, 2)).shape == (3, 2)
    exporting = last_run(store)
    import_path(empty, tmp_path / "out")
    assert contents(empty, last_run(empty)) == contents(store, exporting)


def test_an_axis_of_zero_is_left_out_by_name(
    store: Store, source: RootBuilder, empty: Store, tmp_path: Path
) -> None:
    source.double(1)
    source.double(step=1)
    import_path(store, source.report().root)
    summary = export_flashinfer_trace(store, tmp_path / "out")
    assert (summary.workloads, summary.captures) == (1, 1)
    assert "axis N is 0" in summary.left_out[0]
    assert import_path(empty, tmp_path / "out").captures == 2


def test_a_broken_reference_is_left_out_by_name(
    store: Store, source: RootBuilder, empty: Store, tmp_path: Path
) -> None:
    source.double(1)
    ends = ({"x": (["N"], "float32")}, {"out": (["N"], "float32")})
    source.define(definition("broken", {"N": VAR}, *ends, "def run(x:\n"))
    source.add("broken", {"x": floats(9)}, {"out": floats(9)}, {"N": 1})
    import_path(store, source.report().root)
    summary = export_flashinfer_trace(store, tmp_path / "out")
    assert "definition broken" in summary.left_out[0]
    assert not (tmp_path / "out/definitions/toy/broken.json").exists()
    assert import_path(empty, tmp_path / "out").captures == 2


def test_two_versions_of_a_name_get_two_names(
    store: Store, source: RootBuilder, tmp_path: Path
) -> None:
    source.double(1)
    import_path(store, source.report().root)
    other = RootBuilder(tmp_path / "other")
    ends = ({"x": (["N"], "float32")}, {"out": (["N"], "float32")})
    other.define(definition("double", {"N": VAR}, *ends, "def run(x):\n    return x + x\n"))
    other.add("double", {"x": floats(5)}, {"out": floats(10)}, {"N": 1})
    import_path(store, other.report().root)
    export_flashinfer_trace(store, tmp_path / "out")
    names = sorted(path.stem for path in (tmp_path / "out/definitions/toy").iterdir())
    assert len(names) == 2 and names[0] == "double" and names[1].startswith("double_v")
    assert (tmp_path / f"out/workloads/toy/{names[1]}.jsonl").is_file()


def test_absent_bytes_leave_a_workload_out_by_name(filled: Store, tmp_path: Path) -> None:
    with closing(filled.write()) as connection:
        connection.execute("UPDATE blob SET present = 0, hint = 'git lfs pull'")
    summary = export_flashinfer_trace(filled, tmp_path / "out")
    assert summary.workloads == 0
    assert "git lfs pull" in summary.left_out[0]


def test_a_damaged_blob_stops_the_export_and_leaves_no_folder(
    filled: Store, tmp_path: Path
) -> None:
    path = filled.blobs.path(floats(1, 2).digest())
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    with pytest.raises(BlobDamaged):
        export_flashinfer_trace(filled, tmp_path / "out")
    assert not [entry for entry in tmp_path.iterdir() if "out" in entry.name]


def test_a_foreign_dataset_goes_out_as_it_came(
    store: Store, source: RootBuilder, tmp_path: Path
) -> None:
    source.double(1, receipt=False, row_extra={"Cacheable": True})
    uid = lines(source.rows())[0]["workload"]["uuid"]
    solution = {"name": "fast", "definition": "double", "author": "somebody"}
    folder = source.root / "solutions/somebody/toy/double"
    folder.mkdir(parents=True)
    (folder / "fast.json").write_text(json.dumps(solution))
    trace = {"definition": "double", "solution": "fast", "workload": {"uuid": uid}}
    source.append(source.root / "traces/toy/double.jsonl", trace)
    import_path(store, source.root)
    export_flashinfer_trace(store, tmp_path / "out")
    row = lines(tmp_path / "out/workloads/toy/double.jsonl")[0]
    assert (row["workload"]["uuid"], row["Cacheable"]) == (uid, True)
    assert lines(tmp_path / "out/traces/toy/double.jsonl") == [trace]
    kept = json.loads((tmp_path / "out/solutions/somebody/toy/double/fast.json").read_text())
    assert kept == solution


@pytest.mark.parametrize(
    ("selection", "captures"),
    [
        (Selection(definitions=["dou*"]), 1),
        (Selection(definitions=["nothing", "same"]), 1),
        (Selection(run="last"), 1),
        (Selection(since=1), 2),
    ],
)
def test_a_selection_narrows_files_and_rows(
    filled: Store, tmp_path: Path, selection: Selection, captures: int
) -> None:
    other = RootBuilder(tmp_path / "other")
    ends = ({"x": (["N"], "float32")}, {"out": (["N"], "float32")})
    other.define(definition("same", {"N": VAR}, *ends, "def run(x):\n    return x\n"))
    other.add("same", {"x": floats(5)}, {"out": floats(5)}, {"N": 1})
    import_path(filled, other.report().root)
    summary = export_flashinfer_trace(filled, tmp_path / "out", selection)
    assert summary.captures == captures
    with closing(sqlite3.connect(tmp_path / "out/kclab/kclab.db")) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("capture", "workload", "replay", "definition")
        ]
        blobs = connection.execute("SELECT count(*) FROM blob").fetchone()[0]
    assert counts == [captures] * 4
    files = {path.stem for path in (tmp_path / "out/blob").rglob("*.safetensors")}
    assert blobs == len(files)


def test_a_selection_of_nothing_writes_nothing(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(NothingMatched):
        export_flashinfer_trace(filled, tmp_path / "out", Selection(definitions=["none"]))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", [export_flashinfer_trace, export_rows])
def test_redaction_leaves_out_people_and_machines(
    filled: Store, tmp_path: Path, source: RootBuilder, form: Any
) -> None:
    with closing(filled.write()) as connection:
        connection.execute("UPDATE run SET host = 'workstation-7', note = 'for somebody'")
        connection.execute(
            "INSERT INTO error(run_id, at_us, operation, kind, message, traceback)"
            " SELECT id, 1, 'x', 'y', 'no /home/somebody/x', 'at /home/somebody/x' FROM run LIMIT 1"
        )
    form(filled, tmp_path / "plain")
    assert any(b"secret teapot" in text for text in all_text(tmp_path / "plain"))
    form(filled, tmp_path / "out", redact=True)
    here = str(source.root).encode()
    for text in all_text(tmp_path / "out"):
        for word in (b"secret teapot", b"somebody", b"workstation-7", here):
            assert word not in text


def test_rows_are_a_store_without_bytes_that_merges(
    filled: Store, empty: Store, tmp_path: Path, rows: Rows
) -> None:
    export_rows(filled, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kclab.db"]
    summary = import_path(empty, tmp_path / "out")
    assert (summary.captures, summary.absent, summary.blobs) == (1, 2, 0)
    hint = rows("SELECT DISTINCT hint FROM blob WHERE NOT present", at=empty)[0][0]
    assert str(filled.database) in hint
    assert import_path(empty, filled.database).blobs == 2


def test_a_full_folder_is_left_alone_and_an_empty_one_is_used(
    filled: Store, tmp_path: Path
) -> None:
    full, bare = tmp_path / "full", tmp_path / "bare"
    full.mkdir()
    bare.mkdir()
    (full / "thesis.tex").write_text("years of work")
    with pytest.raises(BadUsage, match="new or empty"):
        export_rows(filled, full)
    export_rows(filled, bare)
    assert (bare / "kclab.db").is_file()
    assert [path.name for path in full.iterdir()] == ["thesis.tex"]


def test_exporting_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissing):
        export_rows(Store.at(tmp_path / "none" / "kclab.db"), tmp_path / "out")
    assert not (tmp_path / "none").exists()


def test_unvalidated_captures_come_back_when_asked_for(
    store: Store, source: RootBuilder, empty: Store, tmp_path: Path
) -> None:
    source.double(1)
    import_path(store, source.root, ImportOptions(include_unvalidated=True))
    export_flashinfer_trace(store, tmp_path / "out")
    options = ImportOptions(include_unvalidated=True)
    assert import_path(empty, tmp_path / "out", options).unvalidated == 1


def test_a_place_that_takes_no_file_is_named_and_not_the_store(
    filled: Store, tmp_path: Path
) -> None:
    target = tmp_path / "nowhere" / "kclab.db"
    with pytest.raises(EnvironmentLacking, match="nowhere cannot be written to") as told:
        copy_rows(filled.database, target, Selection(), redacted=False)
    assert str(filled.database) not in str(told.value)
