"""`kclab definitions` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kclab.core.catalog import load_folder, shipped_folder
from kclab.core.digest import text_sha256
from kclab.core.trust import is_trusted

DOUBLE = "import torch\n\n\ndef run(x):\n    return x * 2\n"


def body(name: str = "double", reference: str = DOUBLE, dtype: str = "float32") -> dict[str, Any]:
    return {
        "name": name,
        "op_type": "toy",
        "axes": {"N": {"type": "var"}},
        "inputs": {"x": {"shape": ["N"], "dtype": dtype}},
        "outputs": {"y": {"shape": ["N"], "dtype": dtype}},
        "reference": reference,
    }


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with one good definition, as its op_type's folder."""
    return put(tmp_path / "mine", body()).parent.parent


def put(folder: Path, content: dict[str, Any], stem: str | None = None) -> Path:
    path = folder / "toy" / f"{stem or content['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def listed(invoke, *argv) -> dict[str, dict[str, Any]]:
    output = invoke("definitions", "list", *argv, "--format", "json")
    assert output.code == 0, output.err
    return {row["name"]: row for row in json.loads(output.out)}


def test_list_shows_the_shipped_ones_and_makes_no_database(invoke, tmp_path):
    rows = listed(invoke)
    assert set(rows) == set(load_folder(shipped_folder()))
    row = rows["dense_gemm_bf16_nt_n64_k4096"]
    assert (row["family"], row["trusted"], row["stored"]) == ("dense_gemm", True, False)
    assert row["axes"] == "M N=64 K=4096"
    assert not (tmp_path / "kclab.db").exists()


def test_list_joins_the_store_and_folders_of_ones_own(invoke, folder):
    assert invoke("definitions", "add", folder).code == 0
    row = listed(invoke, "double")["double"]
    assert (row["stored"], row["trusted"], row["origin"]) == (True, False, str(folder))
    put(folder, body("triple"))
    rows = listed(invoke, "--definitions", folder, "*le")
    assert {name: row["stored"] for name, row in rows.items()} == {"double": True, "triple": False}


def test_list_of_a_glob_that_matches_nothing_says_so(invoke):
    output = invoke("definitions", "list", "dense_*", "nothing_*")
    assert output.code == 3
    assert "'nothing_*'" in output.err


def test_show_tells_interface_rule_and_source(invoke):
    output = invoke("definitions", "show", "gdn_prefill_qk4_v8_d128_k_last")
    assert output.code == 0
    for told in ("num_v_heads=8", "gdn_prefill_state", "rtol 0.016 atol 0.005", "def run("):
        assert told in output.out


def test_show_as_json_holds_the_whole_body(invoke):
    output = invoke("definitions", "show", "dense_gemm_bf16_nt_n64_k4096", "--format", "json")
    path = shipped_folder() / "dense_gemm" / "dense_gemm_bf16_nt_n64_k4096.json"
    assert json.loads(output.out)["body"] == json.loads(path.read_text())


def test_show_of_a_name_with_two_versions_names_the_other(invoke, folder):
    invoke("definitions", "add", folder)
    put(folder, body(dtype="float16"))
    invoke("definitions", "add", folder)
    output = invoke("definitions", "show", "double")
    assert "float16" in output.out
    older = output.err.rpartition(" ")[2].strip()
    assert "float32" in invoke("definitions", "show", older).out


def test_show_of_several_names_asks_for_one(invoke):
    output = invoke("definitions", "show", "gdn_*_qk4_*")
    assert output.code == 2
    assert "gdn_decode_qk4_v8_d128_k_last, gdn_prefill_qk4_v8_d128_k_last" in output.err


def test_validate_passes_what_kclab_ships(invoke):
    output = invoke("definitions", "validate", shipped_folder(), "--format", "json")
    assert output.code == 0
    rows = json.loads(output.out)
    assert {row["status"] for row in rows} == {"passed"}
    noted = [row["detail"] for row in rows if row["detail"] is not None]
    assert noted == [noted[0]] and "uint8" in noted[0]  # NVFP4 has no dtype of its own


def test_validate_names_each_broken_file_and_what_is_wrong(invoke, folder):
    put(folder, body("bad_axis") | {"axes": {}})
    put(folder, body("bad_source", reference="def run(x:\n"))
    output = invoke("definitions", "validate", folder, "--format", "json")
    assert output.code == 1
    detail = {Path(row["file"]).stem: row["detail"] for row in json.loads(output.out)}
    assert detail["bad_axis"].startswith("input 'x': shape names axis 'N'")
    assert "the reference is not valid Python at its line 1" in detail["bad_source"]
    assert output.err == "kclab: 2 of 3 definitions cannot be used.\n"


def test_validate_tells_what_other_tools_would_mind(invoke, folder):
    odd = body("odd", dtype="uint8") | {"axes": {"N": {"type": "var"}, "Q": {"type": "var"}}}
    odd["outputs"]["y"]["shape"] = ["Q"]
    put(folder, odd, "other")
    rows = json.loads(invoke("definitions", "validate", folder, "--format", "json").out)
    detail = {row["name"]: row["detail"] for row in rows}
    assert detail["double"] is None
    for told in ("x is uint8", "axis Q is of no input", "should be called odd.json"):
        assert told in detail["odd"]


def test_validate_of_an_empty_folder_is_no_pass(invoke, tmp_path):
    (tmp_path / "empty").mkdir()
    assert invoke("definitions", "validate", tmp_path / "empty").code == 3


def test_add_twice_adds_nothing_and_a_change_is_a_new_version(invoke, folder):
    assert "1 new definition, 0 already there" in invoke("definitions", "add", folder).err
    assert "0 new definitions, 1 already there" in invoke("definitions", "add", folder).err
    file = put(folder, body(dtype="float16"))
    assert "1 new definition, 0 already there" in invoke("definitions", "add", file).err


@pytest.mark.parametrize(
    "source", ["def run(x:\n", "def go(x):\n    return x\n", "async def run(x):\n    return x\n"]
)
def test_add_refuses_a_broken_reference_and_then_adds_none(invoke, folder, tmp_path, source):
    put(folder, body("broken", reference=source))
    output = invoke("definitions", "add", folder)
    assert output.code == 2
    assert "broken.json: the reference" in output.err
    assert "double" not in listed(invoke)
    assert not (tmp_path / "kclab.db").exists()


def test_nothing_of_a_reference_runs_while_it_is_added_shown_or_trusted(invoke, tmp_path):
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n{DOUBLE}"
    file = put(tmp_path / "mine", body(reference=source))
    for words in (("validate", file), ("add", file), ("show", "double"), ("trust", "double")):
        assert invoke("definitions", *words).code == 0
    assert not mark.exists()


def test_add_says_that_a_foreign_reference_may_not_run_yet(invoke, folder, tmp_path):
    assert "kclab definitions trust double" in invoke("definitions", "add", folder).err
    made = invoke("definitions", "make", "dense_gemm", "--size", "n=4", "--size", "k=4", "--add")
    assert "trust" not in made.err
    assert listed(invoke, "dense_gemm_bf16_nt_n4_k4")


@pytest.mark.parametrize("target", ["double", "file", "folder", "sha", "prefix"])
def test_trust_takes_a_name_a_file_a_folder_or_a_sha256(invoke, folder, target):
    sha = text_sha256(DOUBLE)
    invoke("definitions", "add", folder)
    word = {"file": folder / "toy/double.json", "folder": folder, "sha": sha, "prefix": sha[:12]}
    assert not is_trusted(sha)
    output = invoke("definitions", "trust", word.get(target, target), "--note", "I read it")
    assert (output.code, output.err.split()[:2]) == (0, ["trusted:", sha])
    assert is_trusted(sha)
    rows = json.loads(invoke("definitions", "trust", "--format", "json").out)
    assert [(row["reference_sha256"], row["note"]) for row in rows] == [(sha, "I read it")]
    assert "no longer trusted" in invoke("definitions", "trust", "--remove", sha).err
    assert not is_trusted(sha)


def test_trust_of_nothing_known_is_told(invoke):
    output = invoke("definitions", "trust", "nobody")
    assert output.code == 3
    assert "'nobody'" in output.err


def test_trust_never_travels_with_a_store(invoke, folder, tmp_path, monkeypatch):
    invoke("definitions", "add", folder)
    invoke("definitions", "trust", "double")
    assert listed(invoke, "double")["double"]["trusted"]
    monkeypatch.setenv("KCLAB_TRUST", str(tmp_path / "another-machine.json"))
    assert not listed(invoke, "double")["double"]["trusted"]


def test_make_prints_the_definition_that_the_folder_would_hold(invoke, tmp_path):
    words = ("make", "dense_gemm", "--size", "n=64", "--size", "k=4096")
    output = invoke("definitions", *words)
    path = shipped_folder() / "dense_gemm" / "dense_gemm_bf16_nt_n64_k4096.json"
    assert output.out == path.read_text(encoding="utf-8")
    assert invoke("definitions", *words, "--to", tmp_path / "out").code == 0
    assert (tmp_path / "out/dense_gemm" / path.name).read_text(encoding="utf-8") == output.out


def test_make_takes_options_as_sizes(invoke):
    sizes = ("n=8", "k=4", "bias=true", "dtype=fp16")
    words = [word for size in sizes for word in ("--size", size)]
    made = json.loads(invoke("definitions", "make", "dense_gemm", *words).out)
    assert made["name"] == "dense_gemm_fp16_nt_bias_n8_k4"


def test_make_shipped_writes_every_shipped_file(invoke, tmp_path):
    assert invoke("definitions", "make", "--shipped", "--to", tmp_path / "out").code == 0
    made = {p.name: p.read_bytes() for p in (tmp_path / "out").rglob("*.json")}
    assert made == {p.name: p.read_bytes() for p in shipped_folder().rglob("*.json")}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gemm"], "'gemm' is no family; there are dense_gemm"),
        ([], "name a family; there are dense_gemm"),
        (["dense_gemm", "--size", "n=4"], "needs the size k"),
        (["dense_gemm", "--size", "n"], "write NAME=VALUE"),
        (["dense_gemm", "--size", "n=-4", "--size", "k=4"], "size n must be"),
    ],
)
def test_make_says_what_it_needs(invoke, words, told):
    output = invoke("definitions", "make", *words)
    assert output.code == 2
    assert told in output.err
    assert output.out == ""


def test_families_are_listed_with_their_sizes(invoke):
    rows = json.loads(invoke("definitions", "families", "--format", "json").out)
    assert {r["family"]: r["sizes"] for r in rows}["gated_delta_rule_decode"] == "qk v d"


def test_the_command_loads_no_torch(cli):
    output = cli("definitions", "list", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert output.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in output.err.splitlines() if "|" in line}
    assert "kclab.core.families" in loaded
    assert {"torch", "numpy", "sqlalchemy", "sqlmodel"} & loaded == set()


def test_a_familys_name_over_another_reference_is_of_no_family(invoke, folder):
    put(folder, body("dense_gemm_bf16_nt_n4_k4"))
    row = listed(invoke, "--definitions", folder, "dense_gemm_bf16_nt_n4_k4")
    assert row["dense_gemm_bf16_nt_n4_k4"]["family"] is None
    assert not row["dense_gemm_bf16_nt_n4_k4"]["trusted"]
