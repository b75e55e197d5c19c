"""Importing folders: all or nothing, every byte verified, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from kclab.core.catalog import load_catalog
from kclab.core.errors import BadUsage, BlobDamaged, NothingMatched
from kclab.dataset import read_root
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions, RootRefused
from kclab.db.store import Store
from tests.dataset.builder import CODES, VAR, RootBuilder, definition, floats, safetensors, tensor
from tests.dataset.conftest import Rows

PARTIAL = ImportOptions(partial=True)
UNVALIDATED = ImportOptions(include_unvalidated=True)


def content_rows(rows: Rows) -> list[int]:
    """How many rows each table of content has."""
    tables = ("definition", "blob", "workload", "capture", "replay", "request", "foreign_record")
    return [rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


def blob_files(store: Store) -> list[Path]:
    return sorted(path for path in store.blobs.root.rglob("*") if path.is_file())


def test_a_validated_root_arrives_whole(store: Store, source: RootBuilder, rows: Rows) -> None:
    uid = source.double(1, 2, 3, module_path="blocks.0", request={"prompt": "a teapot"})
    summary = import_path(store, source.report().root)
    assert (summary.workloads, summary.captures, summary.blobs, summary.nbytes) == (1, 1, 2, 24)
    assert rows("SELECT uuid, module_path, operation FROM capture") == [(uid, "blocks.0", "toy")]
    assert json.loads(rows("SELECT payload FROM request")[0][0]) == {"prompt": "a teapot"}
    for sha256 in (floats(1, 2, 3).digest(), floats(2, 4, 6).digest()):
        assert store.blobs.verify(sha256).shape == (3,)


def test_the_verdict_becomes_an_imported_replay(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1, 2, 3)
    import_path(store, source.report().root)
    found = rows("SELECT status, imported, device, seconds FROM replay")
    assert found == [("passed", 1, "cpu", 0.25)]
    output = rows("SELECT name, passed, rtol, atol, elements, max_abs FROM replay_output")
    assert output == [("out", 1, 1e-4, 2e-5, 3, 0.0)]
    validation = json.loads(rows("SELECT receipt FROM capture")[0][0])["validation"]
    assert validation["torch"] == "2.13.0"
    assert validation["tolerances"]["float32"] == {"rtol": 1e-4, "atol": 2e-5}


def test_a_second_import_adds_nothing_and_reads_no_blob(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    import_path(store, source.report().root)
    before = content_rows(rows)
    for blob in source.root.rglob("*.safetensors"):
        blob.write_bytes(b"whoever reads this finds it damaged")
    summary = import_path(store, source.root)
    assert (summary.added, summary.blobs, summary.known) == (0, 0, 1)
    assert content_rows(rows) == before


def test_verify_reads_the_source_again(store: Store, source: RootBuilder) -> None:
    source.double(1)
    import_path(store, source.report().root)
    next(source.root.rglob("*.safetensors")).write_bytes(b"damaged")
    with pytest.raises(RootRefused, match="damaged blob"):
        import_path(store, source.root, ImportOptions(verify=True))


def test_a_root_nobody_replayed_is_refused(store: Store, source: RootBuilder, rows: Rows) -> None:
    source.double(1)
    with pytest.raises(RootRefused, match=r"kclab replay .* first"):
        import_path(store, source.root)
    assert content_rows(rows) == [0] * 7
    assert not blob_files(store)


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_a_root_with_a_failed_case_is_refused_and_names_it(
    store: Store, source: RootBuilder, rows: Rows, verdict: str
) -> None:
    source.double(1)
    source.double(2, step=1, verdict=verdict)
    source.report()
    with pytest.raises(RootRefused, match=f"{source.receipts}:2") as error:
        import_path(store, source.root)
    assert verdict in str(error.value)
    assert content_rows(rows) == [0] * 7
    summary = import_path(store, source.root, PARTIAL)
    assert (summary.captures, len(summary.refused)) == (1, 1)


def test_an_empty_report_and_a_foreign_case_refuse(store: Store, source: RootBuilder) -> None:
    source.double(1)
    cases, source.cases = source.cases, []
    source.report()
    with pytest.raises(RootRefused, match="holds no case"):
        import_path(store, source.root)
    source.cases = [*cases, {"uuid": "of nobody", "definition": "double", "status": "passed"}]
    source.report()
    with pytest.raises(RootRefused, match="case of nobody has no receipt"):
        import_path(store, source.root)


def test_a_receipt_that_the_report_does_not_cover_is_refused(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    source.double(2, step=1, verdict=None)
    with pytest.raises(RootRefused, match=f"{source.receipts}:2: no replay has judged it"):
        import_path(store, source.report().root)
    ((summary,),) = rows("SELECT summary FROM run")
    assert summary.startswith(f"{source.root}: 1 row refused, nothing was imported")


def test_unvalidated_rows_come_marked_when_asked_for(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    summary = import_path(store, source.root, UNVALIDATED)
    assert (summary.captures, summary.unvalidated, summary.replays) == (1, 1, 0)
    assert json.loads(rows("SELECT receipt FROM capture")[0][0])["unvalidated"] is True


def test_a_later_verdict_joins_the_capture(store: Store, source: RootBuilder, rows: Rows) -> None:
    source.double(1)
    import_path(store, source.root, UNVALIDATED)
    summary = import_path(store, source.report().root)
    assert (summary.captures, summary.replays) == (0, 1)
    assert import_path(store, source.root).replays == 0
    assert rows("SELECT count(*) FROM replay") == [(1,)]


def test_rows_without_a_partner_refuse_unless_told_otherwise(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    source.double(4, 5, receipt=False, step=1)
    source.double(6, row=False, step=2)
    source.report()
    with pytest.raises(RootRefused) as error:
        import_path(store, source.root)
    assert f"{source.rows()}:2: no receipt" in str(error.value)
    assert f"{source.receipts}:2: receipt" in str(error.value)
    options = ImportOptions(partial=True, include_unvalidated=True)
    summary = import_path(store, source.root, options)
    assert (summary.workloads, summary.captures) == (2, 1)
    assert [refusal.where for refusal in summary.refused] == [f"{source.receipts}:2"]


def test_a_row_of_random_inputs_needs_no_receipt(store: Store, source: RootBuilder) -> None:
    source.double(1)
    source.add("double", {"x": {"type": "random"}}, {}, {"N": 2}, receipt=False, step=1)
    summary = import_path(store, source.report().root)
    assert (summary.workloads, summary.captures, summary.refused) == (2, 1, [])


def test_a_torn_last_line_is_a_warning(store: Store, source: RootBuilder) -> None:
    source.double(1)
    source.double(4, 5, step=1, verdict=None)
    content = source.rows().read_bytes()
    source.rows().write_bytes(content[:-60])
    summary = import_path(store, source.report().root)
    assert (summary.captures, len(summary.refused)) == (1, 0)
    assert f"{source.rows()}:2" in summary.warnings[0]


def test_a_nul_block_refuses_the_root(store: Store, source: RootBuilder) -> None:
    source.double(1)
    source.double(4, step=1)
    first, second = source.rows().read_bytes().splitlines(keepends=True)
    source.rows().write_bytes(first + b"\0" * 300 + b"\n" + second)
    source.report()
    with pytest.raises(RootRefused, match=f"{source.rows()}:2: damaged, 300 NUL"):
        import_path(store, source.root)
    assert import_path(store, source.root, PARTIAL).captures == 2


def test_a_prompts_line_separators_are_kept(store: Store, source: RootBuilder, rows: Rows) -> None:
    prompt = "a red\u2028teapot\u2029on\u0085a \x0b table"
    source.double(1)
    receipt = json.loads(source.receipts.read_text())
    receipt["request"] = {"prompt": prompt}
    source.receipts.write_text(json.dumps(receipt, ensure_ascii=False) + "\n", "utf-8")
    import_path(store, source.report().root)
    assert json.loads(rows("SELECT receipt FROM capture")[0][0])["request"]["prompt"] == prompt


@pytest.mark.parametrize("cut", [0, 5, -4])
def test_a_damaged_blob_refuses_the_root(
    store: Store, source: RootBuilder, rows: Rows, cut: int
) -> None:
    source.double(1)
    value = floats(10, 2, 3)
    content = value.file()[:cut] if cut else b""
    bad = source.blob("double", value, content)
    source.add("double", {"x": bad}, {"out": floats(20, 4, 6)}, {"N": 3}, step=1)
    with pytest.raises(RootRefused, match="damaged blob") as error:
        import_path(store, source.report().root)
    assert f"{source.rows()}:2" in str(error.value)
    assert value.digest() in str(error.value)
    assert content_rows(rows) == [0] * 7
    assert not blob_files(store)
    assert import_path(store, source.root, PARTIAL).captures == 1


def test_a_blob_with_other_content_than_its_name_is_refused(
    store: Store, source: RootBuilder
) -> None:
    bad = source.blob("double", floats(1), floats(2).file())
    source.double(5)
    source.add("double", {"x": bad}, {"out": floats(2)}, {"N": 1}, step=1)
    with pytest.raises(RootRefused, match="its name says"):
        import_path(store, source.report().root)


def lying(shape: list[int], offsets: list[int], data: bytes, length: int | None = None) -> bytes:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    return safetensors({"tensor": entry}, data, length)


LIES = {
    "shape too big": lying([1000, 1000], [0, 8], b"\0" * 8),
    "hole": lying([2], [4, 12], b"\0" * 12),
    "end before begin": lying([2], [8, 0], b"\0" * 8),
    "overflow": lying([2**62, 4], [0, 8], b"\0" * 8),
    "header of 2^63": lying([2], [0, 8], b"\0" * 8, 2**63),
    "header over the limit": lying([2], [0, 8], b"\0" * 8, 100_000_001),
    "trailing byte": lying([2], [0, 8], b"\0" * 9),
    "no JSON": safetensors(b"not json at all!", b"\0" * 8),
    "other key": floats(1, 2).file(key="other"),
}


def test_lying_headers_are_refused_at_once(store: Store, source: RootBuilder) -> None:
    source.double(1)
    for step, content in enumerate(LIES.values(), 1):
        bad = source.blob("double", floats(step, 2), content)
        source.add("double", {"x": bad}, {"out": floats(2 * step, 4)}, {"N": 2}, step=step)
    started = time.monotonic()
    summary = import_path(store, source.report().root, PARTIAL)
    assert time.monotonic() - started < 5
    assert (summary.captures, len(summary.refused)) == (1, len(LIES))


def test_every_dtype_arrives(store: Store, source: RootBuilder, rows: Rows) -> None:
    for dtype, (_, size) in CODES.items():
        raw = bytes(range(8)) if dtype != "bool" else bytes([0, 1] * 4)
        value = tensor(dtype, (8 // size,), raw)
        ends = ({"x": (["N"], dtype)}, {"out": (["N"], dtype)})
        source.define(definition(dtype, {"N": VAR}, *ends, "def run(x):\n    return x\n"))
        source.add(dtype, {"x": value}, {"out": value}, {"N": 8 // size})
    summary = import_path(store, source.report().root)
    assert summary.captures == len(CODES)
    assert {row[0] for row in rows("SELECT dtype FROM blob")} == set(CODES)


def test_zero_dimensional_tensors_keep_their_shape(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    scale = tensor("float32", (), floats(3).raw)
    ends = ({"x": (["N"], "float32"), "s": ([], "float32")}, {"out": ([], "float32")})
    source.define(definition("scale", {"N": VAR}, *ends, "def run(x, s): return x.sum() * s\n"))
    result = tensor("float32", (), floats(9).raw)
    source.add("scale", {"x": floats(1, 2), "s": scale}, {"out": result}, {"N": 2})
    import_path(store, source.report().root)
    assert rows("SELECT count(*) FROM blob WHERE shape = '[]'") == [(2,)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (tensor("float64", (1,), b"\0" * 8), "x is float64"),
        (tensor("float32", (1, 1), b"\0" * 4), r"needs 1 dimension \[N\]"),
        (floats(1, 2), "axis 'N'"),
    ],
)
def test_a_tensor_that_does_not_fit_its_definition_is_refused(
    store: Store, source: RootBuilder, value: object, reason: str
) -> None:
    source.double(5)
    source.add("double", {"x": value}, {"out": floats(2)}, {"N": 1}, step=1)
    with pytest.raises(RootRefused, match=reason):
        import_path(store, source.report().root)


def test_the_same_tensor_with_other_metadata_is_one_blob(
    store: Store, tmp_path: Path, rows: Rows
) -> None:
    value = floats(1, 2, 3)
    for step, metadata in enumerate((None, {"engine": "sglang", "step": "3"})):
        source = RootBuilder(tmp_path / f"source{step}")
        source.double(9)
        blob = source.blob("double", value, value.file(metadata=metadata))
        source.add("double", {"x": blob}, {"out": floats(2, 4, 6)}, {"N": 3}, step=step)
        import_path(store, source.report().root)
    assert rows("SELECT count(*) FROM blob WHERE sha256 = ?", value.digest()) == [(1,)]
    assert rows("SELECT count(*) FROM workload") == [(2,)]
    assert rows("SELECT count(*) FROM capture") == [(3,)]


def test_equal_bytes_of_other_dtype_or_shape_stay_apart(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    raw = bytes(range(1, 13))
    kinds = [("bfloat16", (6,)), ("bfloat16", (2, 3)), ("bfloat16", (3, 2)), ("int16", (6,))]
    for number, (dtype, shape) in enumerate([*kinds, ("uint8", (12,)), ("float32", (3,))]):
        axes = {f"A{i}": VAR for i in range(len(shape))}
        ends = ({"x": (list(axes), dtype)}, {"out": (list(axes), dtype)})
        source.define(definition(f"d{number}", axes, *ends, "def run(x):\n    return x\n"))
        value = tensor(dtype, shape, raw)
        sizes = dict(zip(axes, shape, strict=True))
        source.add(f"d{number}", {"x": value}, {"out": value}, sizes)
    import_path(store, source.report().root)
    assert rows("SELECT count(*) FROM blob") == [(6,)]


def test_files_are_readable_by_others(store: Store, source: RootBuilder) -> None:
    source.double(1)
    for blob in source.root.rglob("*.safetensors"):
        blob.chmod(0o600)
    before = os.umask(0o022)
    try:
        import_path(store, source.report().root)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in blob_files(store)}
    assert modes == {0o644}


def test_link_shares_the_sources_files(store: Store, source: RootBuilder) -> None:
    source.double(1)
    import_path(store, source.report().root, ImportOptions(link=True))
    target = store.blobs.path(floats(1).digest())
    assert target.samefile(source.root / f"blob/workloads/double/{floats(1).digest()}.safetensors")


def test_a_linked_file_is_young_so_that_no_clean_up_takes_it(
    store: Store, source: RootBuilder
) -> None:
    source.double(1)
    for blob in source.root.rglob("*.safetensors"):
        os.utime(blob, (1, 1))
    import_path(store, source.report().root, ImportOptions(link=True))
    assert store.blobs.path(floats(1).digest()).stat().st_mtime > time.time() - 600


def test_a_file_on_another_device_is_copied_instead_of_linked(
    store: Store, source: RootBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_paths: object, **_options: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    source.double(1)
    monkeypatch.setattr(os, "link", refuse)
    import_path(store, source.report().root, ImportOptions(link=True))
    store.blobs.verify(floats(1).digest())


@pytest.mark.parametrize("link", [False, True])
def test_large_files_are_copied_and_linked_alike(
    store: Store, source: RootBuilder, link: bool
) -> None:
    value = tensor("float32", (1 << 17,), os.urandom(1 << 19))
    source.double(1)
    ends = ({"x": (["N"], "float32")}, {"out": (["N"], "float32")})
    source.define(definition("same", {"N": VAR}, *ends, "def run(x):\n    return x\n"))
    source.add("same", {"x": value}, {"out": value}, {"N": 1 << 17})
    import_path(store, source.report().root, ImportOptions(link=link))
    assert store.blobs.read(value.digest()).data == value.raw


def test_a_damaged_file_that_no_row_vouches_for_is_replaced(
    store: Store, source: RootBuilder
) -> None:
    source.double(1, 2, 3)
    target = store.blobs.path(floats(1, 2, 3).digest())
    target.parent.mkdir(parents=True)
    content = floats(1, 2, 3).file()
    target.write_bytes(content[:-4] + b"\1\2\3\4")
    summary = import_path(store, source.report().root)
    assert summary.repaired == [floats(1, 2, 3).digest()]
    store.blobs.verify(floats(1, 2, 3).digest())


def test_a_damaged_file_that_a_row_vouches_for_needs_repair(
    store: Store, source: RootBuilder
) -> None:
    source.double(1, 2, 3)
    digest = floats(1, 2, 3).digest()
    import_path(store, source.report().root)
    target = store.blobs.path(digest)
    target.write_bytes(target.read_bytes()[:-4] + b"\1\2\3\4")
    with pytest.raises(BlobDamaged, match="--repair"):
        import_path(store, source.root, ImportOptions(verify=True))
    summary = import_path(store, source.root, ImportOptions(repair=True))
    assert summary.repaired == [digest]
    store.blobs.verify(digest)


def test_a_missing_file_that_a_row_vouches_for_is_brought_back_by_repair(
    store: Store, source: RootBuilder
) -> None:
    source.double(1)
    import_path(store, source.report().root)
    store.blobs.path(floats(1).digest()).unlink()
    assert import_path(store, source.root, ImportOptions(repair=True)).repaired
    store.blobs.verify(floats(1).digest())


def test_a_receipt_that_contradicts_the_store_is_refused(store: Store, source: RootBuilder) -> None:
    uid = source.double(1)
    import_path(store, source.report().root)
    receipt = json.loads(source.receipts.read_text())
    receipt["expected_output"] = source.blob("double", floats(7))
    source.receipts.write_text(json.dumps(receipt) + "\n")
    with pytest.raises(RootRefused, match=f"{uid} is in the store with another out"):
        import_path(store, source.root)


def test_unsafe_paths_refuse_the_root_even_partially(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    descriptor = {"type": "safetensors", "path": "../outside.safetensors", "tensor_key": "tensor"}
    source.add("double", {"x": descriptor}, {"out": floats(2)}, {"N": 1}, step=1)
    with pytest.raises(RootRefused, match="climbs out"):
        import_path(store, source.report().root, PARTIAL)
    assert content_rows(rows) == [0] * 7


def test_a_pickle_behind_a_blobs_name_refuses_the_root(store: Store, source: RootBuilder) -> None:
    source.double(1)
    evil = source.blob("double", floats(3), b"\x80\x02cposix\nsystem\n(X\4\0\0\0oopstR.")
    source.add("double", {"x": evil}, {"out": floats(6)}, {"N": 1}, step=1)
    with pytest.raises(RootRefused, match="pickle"):
        import_path(store, source.report().root, PARTIAL)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_a_blob_that_is_no_plain_file_is_refused(
    store: Store, source: RootBuilder, tmp_path: Path, kind: str
) -> None:
    source.double(1)
    descriptor = source.blob("double", floats(3))
    path = source.root / descriptor["path"]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "secret.safetensors").write_bytes(floats(3).file())
        path.symlink_to(tmp_path / "secret.safetensors")
    source.add("double", {"x": descriptor}, {"out": floats(6)}, {"N": 1}, step=1)
    with pytest.raises(RootRefused, match=f"{source.rows()}:2"):
        import_path(store, source.report().root)


def test_leftovers_of_a_killed_capture_are_not_imported(store: Store, source: RootBuilder) -> None:
    source.double(1)
    folder = source.root / "blob/workloads/double"
    (folder / ("0" * 64 + ".4711.tmp")).write_bytes(b"half")
    (folder / ("1" * 64 + ".safetensors")).write_bytes(b"")
    import_path(store, source.report().root)
    assert len(blob_files(store)) == 2


def test_a_merged_dataset_carries_its_verdicts_in_its_receipts(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    source.double(1)
    bare = source.double(4, step=1)
    validation = {"status": "passed", "seconds": 1.5, "device": "cuda", "torch": "2.9"}
    lines = [json.loads(line) for line in source.receipts.read_text().splitlines()]
    lines[0]["validation"] = validation
    del lines[1]["expected_output"]
    source.receipts.unlink()
    for line in lines:
        source.append(source.root / "captures.jsonl", line)
    summary = import_path(store, source.root)
    assert (summary.source, summary.captures) == ("merged dataset", 2)
    assert rows("SELECT device, seconds FROM replay") == [("cuda", 1.5)]
    outputs = "SELECT count(*) FROM capture_output o JOIN capture c ON c.id = o.capture_id"
    assert rows(f"{outputs} WHERE c.uuid = ?", bare) == [(0,)]


def test_an_empty_root_is_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "set" / "workloads").mkdir(parents=True)
    with pytest.raises(NothingMatched):
        import_path(store, tmp_path / "set")


def test_a_path_that_is_no_dataset_makes_no_database(tmp_path: Path) -> None:
    fresh = Store.at(tmp_path / "fresh" / "kclab.db")
    with pytest.raises(BadUsage):
        import_path(fresh, tmp_path / "none")
    assert not fresh.database.exists()


def test_a_large_damaged_file_is_refused_and_leaves_nothing(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    value = tensor("float32", (1 << 17,), os.urandom(1 << 19))
    other = value.file()[:-1] + b"\x99"
    source.double(1)
    bad = source.blob("double", value, other)
    good = tensor("float32", (1 << 17,), bytes(1 << 19))
    source.add("double", {"x": bad}, {"out": good}, {"N": 1 << 17}, step=1)
    with pytest.raises(RootRefused, match="its name says"):
        import_path(store, source.report().root)
    assert content_rows(rows) == [0] * 7
    assert not blob_files(store)


def test_definitions_that_kclab_ships_need_not_be_beside_the_root(
    store: Store, source: RootBuilder, rows: Rows
) -> None:
    name = next(name for name in load_catalog().names() if name.startswith("dense_gemm_bf16_nt_n"))
    body = load_catalog().definitions[name].body
    axes = body["axes"]
    n, k = (axes[axis]["value"] for axis in ("N", "K"))
    zeros = [
        tensor("bfloat16", shape, bytes(2 * shape[0] * shape[1]))
        for shape in ((1, k), (n, k), (1, n))
    ]
    source.add(name, {"A": zeros[0], "W": zeros[1]}, {"C": zeros[2]}, {"M": 1})
    import_path(store, source.report().root)
    assert rows("SELECT name, family FROM definition") == [(name, "dense_gemm")]


def test_a_dataset_beside_the_store_itself_is_imported(
    tmp_path: Path, source: RootBuilder, empty_database: Path
) -> None:
    source.double(1)
    here = Store.at(source.report().root / "kclab.db")
    shutil.copyfile(empty_database, here.database)
    assert import_path(here, source.root).captures == 1


def test_reading_in_place_and_importing_see_the_same_cases(
    store: Store, source: RootBuilder
) -> None:
    source.double(1)
    source.double(2, step=1)
    assert import_path(store, source.report().root).captures == len(read_root(source.root).cases)
