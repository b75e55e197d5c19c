"""Binding axes, and checking a call's inputs and outputs against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclab.core.definition import Definition, python_scalar
from kclab.core.errors import DefinitionInvalid

AXES = ("B", "M", "N", "K", "C")


def specs(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in tensors.items()}


def definition(inputs: dict[str, Any], outputs: dict[str, Any] | None = None) -> Definition:
    """Axes B, M, N, K are variable, C is 7; specs are (shape, dtype)."""
    return Definition.from_body(
        {
            "name": "toy",
            "op_type": "toy",
            "axes": {a: {"type": "var"} for a in AXES[:-1]} | {"C": {"type": "const", "value": 7}},
            "inputs": specs(inputs),
            "outputs": specs(outputs or {"y": ([], "bool")}),
            "reference": "def run(*inputs):\n    return inputs[0]\n",
        }
    )


MATMUL = definition(
    {"A": (["M", "K"], "bfloat16"), "W": (["C", "K"], "bfloat16"), "scale": (None, "float32")},
    {"y": (["M", "C"], "bfloat16"), "count": (["N"], "int32")},
)
CALL = {"A": ("torch.bfloat16", (3, 5)), "W": ("bfloat16", (7, 5)), "scale": 0.5}

shapes_of_axes = st.lists(st.lists(st.sampled_from(AXES), max_size=4), min_size=1, max_size=4).map(
    lambda shapes: {f"t{i}": shape for i, shape in enumerate(shapes)}
)
sizes = st.fixed_dictionaries({a: st.integers(0, 2**40) for a in AXES[:-1]})


@given(shapes_of_axes, sizes)
def test_any_consistent_shapes_bind_every_axis_that_occurs(names, size):
    size = {**size, "C": 7}
    toy = definition({n: (shape, "bool") for n, shape in names.items()})
    bound = toy.bind_axes({n: [size[a] for a in shape] for n, shape in names.items()})
    occurring = {a for shape in names.values() for a in shape} | {"C"}
    assert bound == {a: size[a] for a in AXES if a in occurring}
    assert list(bound) == [a for a in AXES if a in occurring]


@given(shapes_of_axes, sizes, st.data())
def test_one_wrong_dimension_is_refused_by_tensor_unless_it_binds_alone(names, size, data):
    size = {**size, "C": 7}
    toy = definition({n: (shape, "bool") for n, shape in names.items()})
    where = [(n, i) for n, shape in names.items() for i in range(len(shape))]
    counts = {a: sum(shape.count(a) for shape in names.values()) for a in AXES}
    where = [(n, i) for n, i in where if names[n][i] == "C" or counts[names[n][i]] > 1]
    if not where:
        return
    tensor, position = data.draw(st.sampled_from(where))
    shapes = {n: [size[a] for a in shape] for n, shape in names.items()}
    shapes[tensor][position] += 1
    with pytest.raises(DefinitionInvalid, match=f"axis '{names[tensor][position]}'"):
        toy.bind_axes(shapes)


@given(st.lists(st.sampled_from(AXES), max_size=4), st.lists(st.integers(0, 9), max_size=5))
def test_a_wrong_rank_is_refused(names, shape):
    toy = definition({"x": (names, "bool")})
    if len(names) != len(shape):
        with pytest.raises(DefinitionInvalid, match="x has shape"):
            toy.bind_axes({"x": shape})


def test_declared_sizes_stand_in_for_tensors_without_content_and_must_agree():
    assert MATMUL.bind_axes({"W": (7, 5)}, {"M": 9})["M"] == 9
    with pytest.raises(DefinitionInvalid, match="axis 'M' of A"):
        MATMUL.bind_axes({"W": (7, 5)})
    with pytest.raises(DefinitionInvalid, match="axis 'K' is 6"):
        MATMUL.bind_axes({"W": (7, 5)}, {"M": 9, "K": 6})


def test_a_complete_call_gives_its_axes():
    assert MATMUL.check_inputs(CALL) == {"M": 3, "K": 5, "C": 7}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("A", ("float32", (3, 5)), "A is float32; it must be bfloat16"),
        ("A", ("bfloat16", (3, 5, 1)), "A has shape"),
        ("A", ("bfloat16", (3, 4)), "axis 'K'"),
        ("W", ("bfloat16", (8, 5)), "axis 'C' is 7"),
        ("A", 3.0, "A must be a tensor"),
        ("scale", ("float32", ()), "must stay a Python scalar"),
        ("scale", None, "scale must be a Python int, float or bool"),
        ("scale", "0.5", "scale must be a Python"),
        ("scale", True, "it must be float32"),
        ("extra", 1, "has no input 'extra'"),
    ],
)
def test_an_input_that_does_not_fit_is_named(name, value, message):
    with pytest.raises(DefinitionInvalid, match=message):
        MATMUL.check_inputs({**CALL, name: value})


def test_a_missing_input_is_named():
    with pytest.raises(DefinitionInvalid, match="input W is missing"):
        MATMUL.check_inputs({name: CALL[name] for name in ("A", "scale")})


def test_an_empty_axis_is_a_size_like_any_other():
    call = {**CALL, "A": ("bfloat16", (0, 5))}
    assert MATMUL.check_inputs(call)["M"] == 0


def test_outputs_are_checked_against_the_inputs_axes_and_bind_their_own():
    axes = MATMUL.check_inputs(CALL)
    outputs = {"y": ("bfloat16", (3, 7)), "count": ("int32", (11,))}
    assert MATMUL.check_outputs(outputs, axes)["N"] == 11
    for name, value, message in (
        ("y", ("bfloat16", (4, 7)), "axis 'M' is 3"),
        ("y", ("float16", (3, 7)), "it must be bfloat16"),
        ("z", ("int32", ()), "has no output 'z'"),
    ):
        with pytest.raises(DefinitionInvalid, match=message):
            MATMUL.check_outputs({**outputs, name: value}, axes)
    with pytest.raises(DefinitionInvalid, match="output count is missing"):
        MATMUL.check_outputs({"y": outputs["y"]}, axes)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (True, True),
        (2, 2),
    ],
)
def test_numpy_scalars_become_python_ones(value, plain):
    result = python_scalar("s", value)
    assert result == plain
    assert type(result) is type(plain)


@pytest.mark.parametrize("value", [np.zeros(1), np.zeros((2,)), "1", None, [1], 1j])
def test_nothing_else_passes_for_a_scalar(value):
    with pytest.raises(DefinitionInvalid, match="s must be a Python"):
        python_scalar("s", value)


@pytest.mark.parametrize(
    ("dtype", "fits", "odd"),
    [("bool", True, 1), ("int64", 4, True), ("int32", 4, 4.0), ("float32", 4, True)],
)
def test_a_scalar_has_the_kind_that_its_dtype_says(dtype, fits, odd):
    toy = definition({"s": (None, dtype)})
    toy.check_inputs({"s": fits})
    with pytest.raises(DefinitionInvalid, match=f"it must be {dtype}"):
        toy.check_inputs({"s": odd})
