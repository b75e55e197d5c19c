"""Finding definitions in folders, and choosing among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kclab.core import catalog
from kclab.core.catalog import Catalog, load_catalog, load_file, load_folder
from kclab.core.definition import Definition
from kclab.core.errors import BadUsage, DefinitionInvalid, EnvironmentLacking


def body(
    name: str, size: int = 4, reference: str = "def run(x):\n    return x\n"
) -> dict[str, Any]:
    return {
        "name": name,
        "op_type": "toy",
        "axes": {"N": {"type": "const", "value": size}},
        "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
        "reference": reference,
    }


def put(folder: Path, file: str, content: object) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_folder_is_read_at_any_depth(tmp_path):
    put(tmp_path, "a.json", body("a"))
    put(tmp_path, "toy/deep/b.json", body("b"))
    put(tmp_path, "toy/notes.txt", "not a definition")
    assert sorted(load_folder(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("content", ["{", "", '{"a": ' * 100_000, "[1]", "\udcff"])
def test_a_file_that_is_no_definition_is_named(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DefinitionInvalid, match=r"broken\.json: "):
        load_folder(tmp_path)


def test_a_missing_file_or_folder_is_named(tmp_path):
    with pytest.raises(DefinitionInvalid, match=r"none\.json: cannot be read"):
        load_file(tmp_path / "none.json")
    with pytest.raises(BadUsage, match="nowhere: no such folder"):
        load_folder(tmp_path / "nowhere")


def test_two_different_definitions_of_one_name_are_refused_and_equal_ones_are_one(tmp_path):
    put(tmp_path, "1.json", body("a"))
    put(tmp_path, "2.json", body("a"))
    assert list(load_folder(tmp_path)) == ["a"]
    put(tmp_path, "3.json", body("a", size=5))
    with pytest.raises(DefinitionInvalid, match=r"3\.json: another file .* defines a"):
        load_folder(tmp_path)


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_read(tmp_path):
    inside = put(tmp_path, "definitions/a.json", body("a"))
    (tmp_path / "definitions" / "again.json").symlink_to(inside)
    assert list(load_folder(tmp_path / "definitions")) == ["a"]
    outside = put(tmp_path, "secret.json", body("secret"))
    (tmp_path / "definitions" / "b.json").symlink_to(outside)
    with pytest.raises(DefinitionInvalid, match=r"b\.json: is a link out of"):
        load_folder(tmp_path / "definitions")


def test_a_broken_reference_is_refused_unless_foreign_ones_are_wanted(tmp_path):
    put(tmp_path, "a.json", body("a", reference="def go(x): pass"))
    with pytest.raises(DefinitionInvalid, match=r"a\.json: .*def run"):
        load_folder(tmp_path)
    assert load_folder(tmp_path, Definition.from_foreign)["a"].reference_problem


@pytest.fixture
def three() -> Catalog:
    names = ("gemm_n4_k8", "gemm_n8_k8", "attention")
    return Catalog({name: Definition.from_body(body(name)) for name in names})


@pytest.mark.parametrize(
    ("globs", "chosen"),
    [
        ([], ["attention", "gemm_n4_k8", "gemm_n8_k8"]),
        (["gemm_*"], ["gemm_n4_k8", "gemm_n8_k8"]),
        (["attention"], ["attention"]),
        (["*k8", "att*"], ["attention", "gemm_n4_k8", "gemm_n8_k8"]),
    ],
)
def test_names_and_globs_select(three, globs, chosen):
    assert list(three.select(globs)) == chosen


@pytest.mark.parametrize("globs", [["gemm"], ["gemm_*", "nothing"], ["GEMM_*"], [""]])
def test_a_glob_that_matches_nothing_is_bad_usage(three, globs):
    with pytest.raises(BadUsage, match="no definition matches"):
        three.select(globs)


def test_an_unknown_name_is_none(three):
    assert three.get("gemm") is None
    assert three.get("attention").name == "attention"


def test_ones_own_folder_wins_over_the_shipped_one(tmp_path):
    put(tmp_path, "mine.json", body("dense_gemm_bf16_nt_n64_k4096"))
    put(tmp_path, "other.json", body("other"))
    found = load_catalog([tmp_path])
    assert found.get("dense_gemm_bf16_nt_n64_k4096").const_axes == {"N": 4}
    assert found.get("other") is not None
    assert found.get("dense_gemm_bf16_nt_n4096_k64").const_axes == {"N": 4096, "K": 64}


def test_shipped_definitions_are_found_in_a_checkout_and_in_a_wheel(tmp_path, monkeypatch):
    assert (catalog.shipped_folder() / "dense_gemm").is_dir()
    module = put(tmp_path, "site/kclab/core/catalog.py", "")
    monkeypatch.setattr(catalog, "__file__", str(module))
    with pytest.raises(EnvironmentLacking, match="reinstall"):
        catalog.shipped_folder()
    put(tmp_path, "site/kclab/_definitions/toy/a.json", body("a"))
    assert catalog.shipped_folder() == tmp_path.resolve() / "site/kclab/_definitions"
    put(tmp_path, "site/definitions/toy/a.json", body("a"))
    assert catalog.shipped_folder() == tmp_path.resolve() / "site/definitions"
