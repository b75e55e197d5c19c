"""What a definition may say, and what is told about one that says something else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kclab.core.definition import Definition
from kclab.core.errors import DefinitionInvalid

Body = dict[str, Any]


def good() -> Body:
    return {
        "name": "scaled_sum",
        "op_type": "toy",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 4}},
        "inputs": {
            "x": {"shape": ["M", "N"], "dtype": "bfloat16"},
            "s": {"shape": None, "dtype": "float32"},
            "z": {"shape": [], "dtype": "int32"},
        },
        "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
        "reference": "def run(x, s, z):\n    return (x * s).sum(-1)\n",
    }


def changed(*path: str, to: object) -> Body:
    body = copy.deepcopy(good())
    at: Any = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return body


def without(*path: str) -> Body:
    body = copy.deepcopy(good())
    at: Any = body
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return body


def test_a_good_body_is_read_as_it_stands():
    definition = Definition.from_body(good())
    assert definition.var_axes == ("M",)
    assert definition.const_axes == {"N": 4}
    assert list(definition.inputs) == ["x", "s", "z"]
    assert definition.inputs["s"].shape is None
    assert definition.inputs["z"].shape == ()
    assert definition.body == good()
    assert definition.reference_problem is None


REJECTED: dict[str, tuple[object, str]] = {
    "no object": ([1], "JSON object"),
    "no name": (without("name"), "'name'"),
    "empty name": (changed("name", to=""), "'name'"),
    "name with a folder": (changed("name", to="../evil"), "cannot be a file name"),
    "op_type missing": (without("op_type"), "'op_type'"),
    "op_type no text": (changed("op_type", to=3), "'op_type'"),
    "axes missing": (without("axes"), "'axes'"),
    "axis no object": (changed("axes", "M", to=7), "'M'"),
    "axis type unknown": (changed("axes", "M", to={"type": "expr", "expression": "N"}), "'expr'"),
    "axis without anything": (changed("axes", "M", to={}), "'M'"),
    "const without value": (changed("axes", "N", to={"type": "const"}), "'N'"),
    "const negative": (changed("axes", "N", "value", to=-1), "-1"),
    "const fraction": (changed("axes", "N", "value", to=1.5), "1.5"),
    "const boolean": (changed("axes", "N", "value", to=True), "True"),
    "axis name empty": (changed("axes", "", to={"type": "var"}), "empty name"),
    "inputs a list": (changed("inputs", to=[]), "'inputs'"),
    "outputs missing": (without("outputs"), "'outputs'"),
    "input name empty": (changed("inputs", "", to={"shape": [], "dtype": "bool"}), "empty name"),
    "shape missing": (without("inputs", "x", "shape"), "'x'"),
    "shape a string": (changed("inputs", "x", "shape", to="MN"), "'x'"),
    "axis undefined": (changed("inputs", "x", "shape", to=["M", "Q"]), "'Q'"),
    "output axis undefined": (changed("outputs", "y", "shape", to=["Q"]), "'Q'"),
    "dim null": (changed("inputs", "x", "shape", to=["M", None]), "None"),
    "dim negative": (changed("inputs", "x", "shape", to=["M", -4]), "-4"),
    "dtype missing": (without("inputs", "x", "dtype"), "'x'"),
    "dtype unknown": (changed("inputs", "x", "dtype", to="float33"), "float33"),
    "dtype with torch": (changed("inputs", "x", "dtype", to="torch.float32"), "torch.float32"),
    "input is output": (changed("outputs", "x", to={"shape": [], "dtype": "bool"}), "x is both"),
    "reference missing": (without("reference"), "'reference'"),
    "reference empty": (changed("reference", to=""), "'reference'"),
    "reference syntax": (changed("reference", to="x = 1\ndef run(x:\n  return x"), "line 2"),
    "reference null byte": (changed("reference", to="def run(x): return x\0"), "not valid Python"),
    "reference no run": (changed("reference", to="def go(x):\n    return x"), "def run"),
    "reference async": (changed("reference", to="async def run(x):\n    return x"), "def run"),
    "run in a class": (changed("reference", to="class A:\n  def run(x): pass"), "def run"),
    "run a lambda": (changed("reference", to="run = lambda x: x"), "def run"),
    "constraint broken": (changed("constraints", to=["M =="]), "'M =='"),
    "constraint statement": (changed("constraints", to=["M = 3"]), "'M = 3'"),
    "constraints a string": (changed("constraints", to="M > 0"), "'constraints'"),
    "tag empty": (changed("tags", to=[""]), "'tags'"),
    "tags a string": (changed("tags", to="gpu"), "'tags'"),
    "description a list": (changed("description", to=["x"]), "description"),
    "tolerance of nothing": (changed("tolerance", to={"q": {"rtol": 0.1}}), "'q'"),
    "tolerance misspelt": (changed("tolerance", to={"y": {"rtoll": 0.1}}), "rtoll"),
    "tolerance negative": (changed("tolerance", to={"y": {"atol": -1.0}}), "-1.0"),
    "tolerance policy unknown": (changed("tolerance", to={"y": {"policy": "hope"}}), "hope"),
    "capture a string": (changed("capture", to="torch"), "'capture'"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_broken_body_is_refused_in_a_sentence_naming_where_and_what(case):
    body, named = REJECTED[case]
    with pytest.raises(DefinitionInvalid) as refusal:
        Definition.from_body(body, "toy.json")
    assert str(refusal.value).startswith("toy.json")
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


ACCEPTED: dict[str, Body] = {
    "const zero": changed("axes", "N", "value", to=0),
    "const without type": changed("axes", "N", to={"value": 4}),
    "unknown keys": changed("inputs", "x", "optional", to=True),
    "constraints on tensors": changed("constraints", to=["M == x.shape[0]", "M > 0 and M < N"]),
    "scalar output": changed("outputs", "count", to={"shape": None, "dtype": "int64"}),
    "no tags": changed("tags", to=[]),
    "store dtypes": changed("inputs", "x", "dtype", to="uint8"),
    "output-only axis": changed("axes", "Q", to={"type": "var"}),
    "tolerance": changed("tolerance", to={"y": {"rtol": 0.1, "allow_inf": True}}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_others_accept_is_accepted(case):
    assert Definition.from_body(ACCEPTED[case]).name == "scaled_sum"


def test_four_bit_floats_have_torchs_name_inside_and_the_formats_in_the_body():
    body = changed("inputs", "x", "dtype", to="float4_e2m1")
    definition = Definition.from_body(body)
    assert definition.inputs["x"].dtype == "float4_e2m1fn_x2"
    assert definition.body["inputs"]["x"]["dtype"] == "float4_e2m1"


def test_literal_dimensions_become_constant_axes():
    body = changed("inputs", "x", "shape", to=["M", 128])
    body["inputs"]["w"] = {"shape": [128, 3], "dtype": "float32"}
    definition = Definition.from_body(body)
    assert definition.inputs["x"].shape == ("M", "const_128")
    assert definition.inputs["w"].shape == ("const_128", "const_3")
    assert definition.const_axes == {"N": 4, "const_128": 128, "const_3": 3}
    json.dumps(definition.body)
    assert Definition.from_body(definition.body).sha256 == definition.sha256
    assert body["inputs"]["x"]["shape"] == ["M", 128]


def test_a_literal_dimension_never_takes_the_name_of_another_axis():
    body = changed("axes", "const_4", to={"type": "var"})
    body["inputs"]["x"]["shape"] = ["M", 4]
    definition = Definition.from_body(body)
    assert definition.inputs["x"].shape == ("M", "const_4_")
    assert definition.axes["const_4"].kind == "var"


def test_a_foreign_definition_keeps_its_broken_reference_and_says_why():
    definition = Definition.from_foreign(changed("reference", to="def go(x): pass"))
    assert "def run" in (definition.reference_problem or "")
    with pytest.raises(DefinitionInvalid):
        Definition.from_foreign(changed("axes", "N", "value", to=-1))


def test_nothing_of_a_reference_runs_while_it_is_read(tmp_path):
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\ndef run(x):\n    return x\n"
    Definition.from_body(changed("reference", to=source))
    assert not mark.exists()


@pytest.mark.parametrize("path", [("description",), ("tolerance",), ("inputs", "x", "dtype")])
def test_any_change_of_the_body_is_another_version(path):
    values = {"description": "d", "tolerance": {"y": {"exact": True}}, "dtype": "float16"}
    value = values[path[-1]]
    before, after = Definition.from_body(good()), Definition.from_body(changed(*path, to=value))
    assert before.sha256 != after.sha256
    assert before.reference_sha256 == after.reference_sha256
