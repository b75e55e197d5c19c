"""Replaying a dataset folder in place: faults that people met, each with its right ending."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kclab.core.errors import BadUsage
from kclab.core.trust import trust
from kclab.dataset.roots import read_root
from kclab.db.store import Store
from kclab.replay import Options, ReplaySummary, Selection, replay_root, untrusted
from tests.replay.toys import RootBuilder, body

pytestmark = pytest.mark.usefixtures("warm_workers")

X = torch.tensor([1.0, 2.0, 3.0])
NAN = math.nan


@pytest.fixture
def build(tmp_path: Path) -> RootBuilder:
    """A root with the definition `double` and one workload that passes."""
    builder = RootBuilder(tmp_path / "case")
    builder.define(body())
    builder.add("double", {"x": X}, {"out": X * 2})
    return builder


def replayed(
    store: Store, build: RootBuilder, *, trusting: bool = True, **selection: Any
) -> ReplaySummary:
    root = read_root(build.root)
    for definition in untrusted(root.definitions.values()) if trusting else ():
        trust(definition.reference_sha256)
    options = Options(device="cpu", jobs=1, oracle=selection.pop("oracle", False))
    return replay_root(store, root, Selection(**selection), options)


def verdicts(store: Store) -> list[Mapping[str, Any]]:
    connection = store.read()
    try:
        return [dict(row) for row in connection.execute("SELECT * FROM replay ORDER BY id")]
    finally:
        connection.close()


def report(build: RootBuilder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((build.root / "results" / "replay.json").read_text())
    return found


def test_a_good_root_passes_and_gets_its_report(store: Store, build: RootBuilder) -> None:
    assert replayed(store, build).status == "passed"
    (case,) = report(build)["cases"]
    assert (case["status"], case["max_absolute_errors"]) == ("passed", [0.0])
    assert report(build)["device"] == "cpu" and report(build)["torch"].startswith("2.")
    (verdict,) = verdicts(store)
    assert verdict["origin"].endswith("workloads/toy/double.jsonl:1")
    assert verdict["capture_id"] is None and verdict["definition_id"] is not None


def test_the_receipts_uuids_are_the_reports_uuids(store: Store, build: RootBuilder) -> None:
    build.add("double", {"x": X + 1}, {"out": X * 9})
    replayed(store, build)
    receipts = (build.root / "results/captures.jsonl").read_text().splitlines()
    assert {case["uuid"] for case in report(build)["cases"]} == {
        json.loads(line)["uuid"] for line in receipts
    }
    assert [case["status"] for case in report(build)["cases"]] == ["passed", "failed"]


def test_an_untrusted_root_is_not_run_and_keeps_its_report(
    store: Store, build: RootBuilder
) -> None:
    old = build.root / "results" / "replay.json"
    old.write_text('{"cases": []}')
    summary = replayed(store, build, trusting=False)
    assert summary.only_lacking
    assert old.read_text() == '{"cases": []}'
    assert "1 workload could not be judged on this machine" in summary.notes[-1]


def test_part_of_a_root_leaves_its_report(store: Store, build: RootBuilder) -> None:
    build.define(body("other"))
    build.add("other", {"x": X}, {"out": X * 2})
    summary = replayed(store, build, definitions=("other",))
    assert summary.total == 1
    assert not (build.root / "results" / "replay.json").exists()
    assert "only a whole replay writes it" in summary.notes[-1]


def test_a_read_only_root_is_a_note(
    store: Store, build: RootBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kclab.replay.service.write_report", refuse)
    summary = replayed(store, build)
    assert summary.status == "passed"
    assert "not written (Permission denied" in summary.notes[-1]


def test_conditions_of_a_store_are_refused(store: Store, build: RootBuilder) -> None:
    with pytest.raises(BadUsage, match="--never-passed selects captures of a store"):
        replayed(store, build, never_passed=True)


def test_zero_dimensional_tensors_pass(store: Store, build: RootBuilder) -> None:
    scalar = body("total", "def run(x, s):\n    return x.sum() * s\n", inputs=("x", "s"))
    scalar["inputs"]["s"] = scalar["outputs"]["out"] = {"shape": [], "dtype": "float32"}
    build.define(scalar)
    build.add("total", {"x": X, "s": torch.tensor(3.0)}, {"out": torch.tensor(18.0)})
    assert replayed(store, build).status == "passed"


def test_damaged_blobs_fail_alone(store: Store, build: RootBuilder) -> None:
    for number, kept in enumerate((0, 5, -4)):
        x = X + number + 1
        good = build.blob(x)
        data = (build.root / good["path"]).read_bytes()
        cut = build.blob(x, content=data[:kept] if kept else b"")
        build.add("double", {"x": cut}, {"out": x * 2})
    replayed(store, build)
    assert [v["status"] for v in verdicts(store)] == ["passed", "error", "error", "error"]
    assert all("damaged blob" in v["reason"] for v in verdicts(store)[1:])
    assert "80 of 84 bytes" in verdicts(store)[3]["reason"]


def lying(shape: list[int], offsets: list[int], data: int, length: int | None = None) -> bytes:
    entry = {"tensor": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    text = json.dumps(entry).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * data


LIES = {
    "shape too big": lying([1000, 1000], [0, 8], 8),
    "a hole": lying([2], [4, 12], 12),
    "end before begin": lying([2], [8, 0], 8),
    "overflow": lying([2**62, 4], [0, 8], 8),
    "an endless header": lying([2], [0, 8], 8, length=2**63),
    "a huge header": lying([2], [0, 8], 8, length=100_000_001),
    "a byte too many": lying([2], [0, 8], 9),
    "no JSON": struct.pack("<Q", 16) + b"not json at all!" + b"\0" * 8,
}


def test_lying_headers_fail_one_by_one(store: Store, build: RootBuilder) -> None:
    for number, content in enumerate(LIES.values()):
        x = torch.tensor([float(number), 7.0])
        build.add("double", {"x": build.blob(x, content=content)}, {"out": x * 2})
    key = {**build.blob(X), "tensor_key": "other"}
    build.add("double", {"x": key}, {"out": X * 2})
    replayed(store, build)
    found = verdicts(store)
    assert [v["status"] for v in found] == ["passed"] + ["error"] * (len(LIES) + 1)
    assert "no tensor 'other'" in found[-1]["reason"]


def test_other_content_under_a_digests_name_is_damage(store: Store, build: RootBuilder) -> None:
    x = X + 1
    other = (build.root / build.blob(x + 1)["path"]).read_bytes()
    build.add("double", {"x": build.blob(x, content=other)}, {"out": x * 2})
    replayed(store, build)
    assert "its content has digest" in verdicts(store)[1]["reason"]


def test_metadata_in_a_file_is_no_content(store: Store, build: RootBuilder) -> None:
    data = struct.pack("<3f", *X.tolist())
    header = json.dumps(
        {
            "__metadata__": {"engine": "toy"},
            "tensor": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
        }
    ).encode()
    build.blob(X, content=struct.pack("<Q", len(header)) + header + data)
    assert replayed(store, build).status == "passed"


def test_nan_names_its_first_index_and_can_be_allowed(store: Store, build: RootBuilder) -> None:
    same = "def run(x):\n    return x / x\n"
    x, out = torch.tensor([0.0, 1.0]), torch.tensor([NAN, 1.0])
    build.define(body("same", same))
    build.define(body("allowed", same, tolerance={"out": {"equal_nan": True}}))
    build.add("same", {"x": x}, {"out": out})
    build.add("allowed", {"x": x}, {"out": out})
    replayed(store, build)
    found = {v["definition"]: v for v in verdicts(store)}
    assert found["same"]["status"] == "failed"
    assert "non-finite: 1 of 2 elements, first at [0]" in found["same"]["reason"]
    assert found["allowed"]["status"] == "passed"
    connection = store.read()
    metrics = connection.execute(
        "SELECT metrics FROM replay_output WHERE replay_id = ?", (found["allowed"]["id"],)
    ).fetchone()[0]
    connection.close()
    assert json.loads(metrics) == {"equal_nan": 1}


def test_outputs_match_by_name_whatever_the_receipts_order(
    store: Store, build: RootBuilder
) -> None:
    reference = "def run(x):\n    return x * 2, x + 10\n"
    build.define(body("two", reference, outputs=("output", "new_state")))
    build.add("two", {"x": X}, {"output": X * 2, "new_state": X + 10})
    assert replayed(store, build).status == "passed"


def test_rows_without_a_partner_are_named(store: Store, build: RootBuilder) -> None:
    bare = build.add("double", {"x": X + 1}, {"out": X}, receipt=False)
    orphan = build.add("double", {"x": X + 2}, {"out": X}, row=False)
    summary = replayed(store, build)
    assert summary.status == "passed"
    found = {v["subject"]: v for v in verdicts(store)}
    assert (found[bare]["status"], found[bare]["reason"]) == ("skipped", "no engine output")
    assert found[orphan]["status"] == "skipped"
    assert "orphan receipt" in found[orphan]["reason"]
    assert len(report(build)["cases"]) == 1


def test_random_inputs_are_skipped_and_dotted_paths_are_read(
    store: Store, build: RootBuilder
) -> None:
    dotted = build.blob(X + 1)
    dotted["path"] = f"./{dotted['path']}"
    build.add("double", {"x": dotted}, {"out": (X + 1) * 2})
    build.add("double", {"x": {"type": "random"}}, {"out": X}, receipt=False)
    assert replayed(store, build).count("passed") == 2
    found = {v["status"]: v["reason"] for v in verdicts(store)}
    assert found == {"passed": None, "skipped": "input x is random: no value was captured"}


def test_a_torn_last_line_is_a_note_and_changes_nothing(store: Store, build: RootBuilder) -> None:
    build.add("double", {"x": X + 1}, {"out": (X + 1) * 2})
    path = build.root / "workloads/toy/double.jsonl"
    path.write_bytes(path.read_bytes()[:-60])
    before = path.read_bytes()
    summary = replayed(store, build)
    assert summary.count("passed") == 1
    assert any("double.jsonl:2: the last line is torn" in note for note in summary.notes)
    assert path.read_bytes() == before


def test_a_block_of_nul_bytes_is_an_error_at_its_line(store: Store, build: RootBuilder) -> None:
    path = build.root / "workloads/toy/double.jsonl"
    with path.open("ab") as stream:
        stream.write(b"\0" * 300 + b"\n")
    build.add("double", {"x": X + 1}, {"out": (X + 1) * 2})
    summary = replayed(store, build)
    assert summary.count("passed") == 2
    assert any("double.jsonl:2" in (v["reason"] or "") for v in verdicts(store))
    assert summary.status == "failed"


def test_line_separators_inside_a_text_do_not_split_it(store: Store, build: RootBuilder) -> None:
    build.add("double", {"x": X + 1}, {"out": (X + 1) * 2})
    path = build.root / "results/captures.jsonl"
    records = [json.loads(line) for line in path.read_text().split("\n") if line]
    for record in records:
        record["request"] = {"prompt": "red\u2028tea\u2029pot\u0085\x0b"}
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    assert replayed(store, build).count("passed") == 2


@pytest.mark.parametrize(
    "text",
    ["/etc/hostname", "../outside.safetensors", "blob/../../outside.safetensors", "C:\\x"],
)
def test_paths_that_leave_the_root_are_refused(store: Store, build: RootBuilder, text: str) -> None:
    outside = build.folder / "outside.safetensors"
    outside.write_bytes((build.root / build.blob(X)["path"]).read_bytes())
    descriptor = {"type": "safetensors", "path": text, "tensor_key": "tensor"}
    build.add("double", {"x": descriptor}, {"out": X * 2})
    summary = replayed(store, build)
    assert (summary.count("passed"), summary.count("error")) == (1, 1)


def test_a_link_that_leaves_the_root_is_refused(store: Store, build: RootBuilder) -> None:
    outside = build.folder / "outside.safetensors"
    descriptor = build.blob(X + 5)
    inside = build.root / descriptor["path"]
    inside.rename(outside)
    inside.symlink_to(outside)
    build.add("double", {"x": descriptor}, {"out": (X + 5) * 2})
    assert replayed(store, build).count("error") == 1


def test_leftovers_of_a_killed_capture_do_not_matter(store: Store, build: RootBuilder) -> None:
    folder = build.root / "blob" / "workloads"
    (folder / f"{'0' * 64}.4711.tmp").write_bytes(b"half")
    (folder / f"{'1' * 64}.safetensors").write_bytes(b"")
    assert replayed(store, build).status == "passed"


def test_broken_references_are_failed_rows(store: Store, build: RootBuilder) -> None:
    for name, reference in {
        "syntax": "def run(x:\n  return x\n",
        "norun": "def go(x):\n    return x\n",
        "exits": "import sys\ndef run(x):\n    sys.exit(3)\n",
    }.items():
        build.define(body(name, reference))
        build.add(name, {"x": X}, {"out": X})
    summary = replayed(store, build)
    assert (summary.count("passed"), summary.count("error")) == (1, 3)
    assert {case["status"] for case in report(build)["cases"]} == {"passed", "failed"}


def test_a_merged_dataset_is_replayed_in_place_too(store: Store, build: RootBuilder) -> None:
    (build.root / "results/captures.jsonl").rename(build.root / "captures.jsonl")
    (build.root / "results").rmdir()
    assert replayed(store, build).status == "passed"
    assert report(build)["cases"][0]["status"] == "passed"


def test_a_dataset_without_engine_outputs_is_empty_and_gets_no_report(
    store: Store, build: RootBuilder
) -> None:
    (build.root / "results/captures.jsonl").unlink()
    summary = replayed(store, build)
    assert summary.status == "empty"
    assert not (build.root / "results/replay.json").exists()
    assert "there was nothing to judge" in summary.notes[-1]
