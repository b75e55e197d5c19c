"""Reading a dataset folder: every row typed, every fault named, nothing opened that is outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclab.core.errors import BadUsage, DatasetRefused
from kclab.dataset import RootKind, read_root
from tests.dataset.builder import VAR, RootBuilder, definition, floats


def test_a_capture_root_gives_cases_with_receipts_and_verdicts(source: RootBuilder) -> None:
    uid = source.double(1, 2, 3)
    root = read_root(source.report().root)
    case = root.cases[0]
    assert root.kind is RootKind.CAPTURE
    assert (case.uuid, case.capture_uuid, case.axes) == (uid, uid, {"N": 3})
    assert case.where == f"{source.rows()}:1"
    assert case.receipt_where == f"{source.receipts}:1"
    assert case.verdict is not None and case.verdict["device"] == "cpu"
    assert not root.refusals and not root.orphans and not root.warnings


def test_outputs_are_matched_by_name_in_the_definitions_order(source: RootBuilder) -> None:
    outputs = {"output": (["N"], "float32"), "new_state": (["N"], "float32")}
    reference = "def run(x):\n    return x * 2, x + 10\n"
    source.define(definition("two", {"N": VAR}, {"x": (["N"], "float32")}, outputs, reference))
    source.add("two", {"x": floats(1)}, {"output": floats(2), "new_state": floats(11)}, {"N": 1})
    outputs_read = read_root(source.root).cases[0].outputs or {}
    assert list(outputs_read) == ["output", "new_state"]
    assert floats(11).digest() in outputs_read["new_state"].text


def test_rows_without_a_partner_are_told_apart(source: RootBuilder) -> None:
    source.double(1)
    bare = source.double(4, 5, receipt=False, step=1)
    orphan = source.double(6, row=False, step=2)
    root = read_root(source.root)
    assert [case.uuid for case in root.cases if case.receipt is None] == [bare]
    assert [(o.uuid, o.where, o.torn) for o in root.orphans] == [
        (orphan, f"{source.receipts}:2", False)
    ]


def test_a_torn_last_row_is_a_warning_and_explains_its_receipt(source: RootBuilder) -> None:
    source.double(1)
    source.double(4, 5, step=1)
    content = source.rows().read_bytes()
    source.rows().write_bytes(content[:-60])
    root = read_root(source.root)
    assert len(root.cases) == 1
    assert root.orphans[0].torn
    assert f"{source.rows()}:2" in root.warnings[0]
    assert source.rows().read_bytes() == content[:-60]


def test_flashinfer_rows_are_read(source: RootBuilder) -> None:
    source.double(1)
    descriptor = source.blob("double", floats(1, 2))
    descriptor["path"] = f"./{descriptor['path']}"
    nulls = {"solution": None, "evaluation": None}
    source.add(
        "double", {"x": descriptor}, {"out": floats(2, 4)}, {"N": 2}, row_extra=nulls, step=1
    )
    source.add("double", {"x": {"type": "random"}}, {}, {"N": 2}, receipt=False, step=2)
    root = read_root(source.root)
    assert [case.random_inputs for case in root.cases] == [[], [], ["x"]]
    tensor = root.cases[1].inputs["x"]
    assert "/./" not in tensor.location  # type: ignore[union-attr]


def test_escaping_paths_are_refused_before_they_are_opened(source: RootBuilder) -> None:
    source.double(1)
    outside = source.folder / "outside.safetensors"
    outside.write_bytes(floats(1).file())
    outside.chmod(0)
    texts = ["/etc/hostname", "../outside.safetensors", "blob/../../x", "C:\\x", str(outside)]
    for step, text in enumerate(texts, 1):
        descriptor = {"type": "safetensors", "path": text, "tensor_key": "tensor"}
        source.add("double", {"x": descriptor}, {"out": floats(2)}, {"N": 1}, step=step)
    root = read_root(source.root)
    assert len(root.cases) == 1
    assert [refusal.where for refusal in root.refusals] == [
        f"{source.rows()}:{line}" for line in range(2, 7)
    ]
    assert all(refusal.unsafe and refusal.uuid for refusal in root.refusals)


def test_a_linked_rows_file_is_refused(source: RootBuilder, tmp_path: Path) -> None:
    source.double(1)
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}\n")
    (source.rows().parent / "other.jsonl").symlink_to(secret)
    root = read_root(source.root)
    assert len(root.cases) == 1
    assert root.refusals[0].unsafe


def test_a_definitions_folder_that_is_elsewhere_is_left_out(
    source: RootBuilder, tmp_path: Path
) -> None:
    source.double(1)
    outside = tmp_path / "elsewhere"
    (source.folder / "definitions").rename(outside)
    (source.root / "definitions").symlink_to(outside)
    root = read_root(source.root)
    assert not root.cases
    assert "double" not in root.definitions
    assert any("leads out" in warning for warning in root.warnings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"definition": "nobody"}, "--definitions"),
        ({"definition": None}, "names no definition"),
        ({"workload": 3}, "no workload"),
        ({"solution": "mine"}, "no workload row"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(
    source: RootBuilder, change: dict[str, object], reason: str
) -> None:
    source.double(1, receipt=False)
    row = json.loads(source.rows().read_text())
    source.append(source.rows(), {**row, **change, "x": 1})
    refusals = read_root(source.root).refusals
    assert [refusal.where for refusal in refusals] == [f"{source.rows()}:2"]
    assert reason in refusals[0].reason or "different content" in refusals[0].reason


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({}, "input x is missing"),
        ({"x": {"type": "random"}, "y": {"type": "random"}}, "no input y"),
        ({"x": {"type": "scalar", "value": 1}}, "must be a tensor"),
        ({"x": {"type": "scalar", "value": "1"}}, "no number or bool"),
        ({"x": {"type": "zeros"}}, "known are"),
        ({"x": 3}, "known are"),
        ({"x": {"type": "safetensors", "path": "a.safetensors"}}, "tensor_key"),
    ],
)
def test_bad_inputs_are_named(source: RootBuilder, inputs: dict[str, object], reason: str) -> None:
    source.double(1)
    workload = {"uuid": "u", "axes": {"N": 1}, "inputs": inputs}
    source.append(source.rows(), {"definition": "double", "workload": workload})
    refusal = read_root(source.root).refusals[0]
    assert reason in refusal.reason
    assert refusal.uuid == "u"


def test_a_repeated_uuid_is_skipped_or_a_conflict(source: RootBuilder) -> None:
    source.double(1, receipt=False)
    row = json.loads(source.rows().read_text())
    source.append(source.rows(), row)
    source.append(source.rows(), {**row, "note": "another"})
    root = read_root(source.root)
    assert len(root.cases) == 1
    assert [f"{source.rows()}:2" in warning for warning in root.warnings] == [True]
    assert [refusal.where for refusal in root.refusals] == [f"{source.rows()}:3"]


def test_flashinfers_own_dump_becomes_a_definition(source: RootBuilder) -> None:
    source.define(
        definition(
            "dump",
            {"M": VAR, "K": {"type": "const"}},
            {"x": (["M", "K"], "uint8")},
            {"y": (["M", 4], "float32")},
            "def _help(x):\n    return x\n\ndef mm_reference(x):\n    return _help(x)\n",
            tags=["fi_api:flashinfer.mm"],
        )
    )
    source.double(1)
    found = read_root(source.root).definitions["dump"]
    assert found.axes["K"].kind == "var"
    assert found.axes["const_4"].value == 4
    assert found.reference_problem is None
    scope: dict[str, object] = {}
    exec(found.reference, scope)
    assert scope["run"](7) == 7  # type: ignore[operator]


def test_a_broken_reference_is_kept_and_named(source: RootBuilder) -> None:
    source.double(1)
    source.define(definition("syn", {"N": VAR}, {"x": (["N"], "float32")}, {}, "def run(x:\n"))
    assert "not valid Python" in str(read_root(source.root).definitions["syn"].reference_problem)


def test_the_asked_for_definitions_come_first(source: RootBuilder, tmp_path: Path) -> None:
    source.double(1)
    other = RootBuilder(tmp_path / "other")
    other.define(
        definition("double", {"N": VAR}, {"x": (["N"], "float32")}, {}, "def run(x): return 1\n")
    )
    root = read_root(source.root, other.folder / "definitions")
    assert root.definitions["double"].reference == "def run(x): return 1\n"


def test_what_is_no_dataset_folder_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "input.pt").write_bytes(b"\x80\x02.")
    (tmp_path / "set.tar.gz").write_bytes(b"")
    with pytest.raises(DatasetRefused, match="pickle"):
        read_root(tmp_path / "input.pt")
    with pytest.raises(BadUsage, match="archives are not read"):
        read_root(tmp_path / "set.tar.gz")
    with pytest.raises(BadUsage, match="no such"):
        read_root(tmp_path / "none")
    with pytest.raises(BadUsage, match="no dataset"):
        read_root(tmp_path)
