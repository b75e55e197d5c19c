"""Tolerances: defaults by dtype, and what a definition may say."""

from __future__ import annotations

from typing import Any

import pytest

from kclab.core.definition import Definition
from kclab.core.errors import DefinitionInvalid
from kclab.core.tolerance import OutputTolerance, default_tolerance, parse_tolerance, tolerance_for


def definition(name: str, dtype: str, tolerance: dict[str, Any] | None = None) -> Definition:
    shape = {"shape": ["N"], "dtype": dtype}
    return Definition.from_body(
        {
            "name": name,
            "op_type": "toy",
            "axes": {"N": {"type": "var"}},
            "inputs": {"x": shape},
            "outputs": {"out": shape},
            "reference": "def run(x):\n    return x\n",
            **({"tolerance": {"out": tolerance}} if tolerance else {}),
        }
    )


@pytest.mark.parametrize(
    ("dtype", "policy", "rtol", "atol"),
    [
        ("bfloat16", "allclose", 0.016, 0.005),
        ("float16", "allclose", 0.002, 0.000625),
        ("float32", "allclose", 1e-4, 2e-5),
        ("complex64", "allclose", 1e-4, 2e-5),
        ("float64", "allclose", 1e-9, 1e-10),
        ("int64", "exact", None, None),
        ("bool", "exact", None, None),
        ("float8_e4m3fn", "bytes", None, None),
        ("float4_e2m1fn_x2", "bytes", None, None),
        ("float8_e8m0fnu", "bytes", None, None),
    ],
)
def test_each_dtype_has_its_default(
    dtype: str, policy: str, rtol: float | None, atol: float | None
) -> None:
    assert default_tolerance(dtype) == OutputTolerance(policy, rtol, atol)


def test_a_definition_overrides_its_dtype() -> None:
    stated = {"rtol": 0.1, "atol": 0.2, "allow_inf": True}
    found = tolerance_for(definition("d", "float32", stated), "out")
    assert found == OutputTolerance("allclose", 0.1, 0.2, allow_inf=True)


def test_one_stated_number_keeps_the_other_default() -> None:
    found = tolerance_for(definition("d", "bfloat16", {"atol": 1.0}), "out")
    assert (found.rtol, found.atol) == (0.016, 1.0)


def test_flags_alone_keep_the_default_rule() -> None:
    found = parse_tolerance({"equal_nan": True}, "int32", "here")
    assert found == OutputTolerance("exact", equal_nan=True)


def test_gated_delta_prefill_states_take_their_policy_without_being_told() -> None:
    name = "gated_delta_rule_prefill_h4"
    assert tolerance_for(definition(name, "float32"), "out").policy == "gdn_prefill_state"
    assert tolerance_for(definition(name, "bfloat16"), "out").policy == "allclose"


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        ({"rtoll": 1}, "unknown 'rtoll'"),
        ({"policy": "nearly"}, "unknown policy 'nearly'"),
        ({"policy": "gdn_prefill_state", "rtol": 1}, "exclude each other"),
        ({"exact": True, "atol": 1}, "exclude each other"),
        ({"exact": 1}, "not true or false"),
        ({"rtol": -1}, "at least 0"),
        ({"rtol": float("inf")}, "finite"),
        ({"atol": True}, "not a number"),
        ([], "not an object"),
    ],
)
def test_a_tolerance_that_means_nothing_is_refused(stated: Any, what: str) -> None:
    with pytest.raises(DefinitionInvalid, match=what):
        parse_tolerance(stated, "float32", "toy: tolerance of 'out'")
